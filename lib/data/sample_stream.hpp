#pragma once
/// Documents packed into samples, and the order in which training sees them.
///
/// A document of n tokens t1..tn owns n + 1 rows. A row reads one token and predicts the next:
///
///     reads     S   t1   t2  ...  tn        S: the tokenizer's start token, or else its end token
///     predicts  t1  t2   t3  ...  E         E: the end token
///
/// So every token of every document, the first one and the end included, is predicted exactly once,
/// from its own document only, and nothing of a document is free: with all rows evaluated,
///
///     bits per byte = sum of -log2 p over all rows / source_bytes()
///
/// is the length of a decodable encoding of the text, ends of documents included, and may be held
/// against `gzip` of the same bytes.
///
/// A document with a prompt of p tokens (prompt and completion) trains rows p to n only: those that
/// predict the completion's tokens and the end. The rows before have target -1, and source_bytes()
/// counts the completions alone.
///
/// Wrapped packing joins the rows of all documents and cuts them into samples of seq_len rows.
/// Best-fit packing puts whole documents into samples (best_fit.hpp) and cuts only those that are
/// longer than a sample. Rows behind a sample's last document are padding: they read E, predict
/// nothing (target -1) and form a document of their own.
///
/// Everything is a pure function of its arguments: no state, no cursor, no dependence on ranks.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/philox.hpp"
#include "lib/data/best_fit.hpp"
#include "lib/data/token_set.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// No prediction is trained at this row.
inline constexpr std::int32_t kNoTarget = -1;

enum class PackingStrategy : std::uint8_t { wrapped, best_fit };

struct PackingOptions {
  std::int64_t seq_len = 0;  ///< rows per sample
  PackingStrategy strategy = PackingStrategy::wrapped;
  /// Whether a row may attend to earlier documents of its sample.
  bool cross_document_attention = false;
  /// Whether positions count from the start of the document (within the sample) or of the sample.
  bool reset_positions = true;
};

/// Where the rows of one sample are written: four arrays of seq_len elements, owned by the caller.
struct SampleView {
  std::span<std::int32_t> tokens;     ///< ids that the rows read
  std::span<std::int32_t> targets;    ///< ids that the rows predict; kNoTarget where untrained
  std::span<std::int32_t> doc_begin;  ///< row i may attend to rows [doc_begin[i], i] of the sample
  std::span<std::int32_t> positions;
};

/// Rows of one document in a sample.
struct SamplePiece {
  std::uint64_t document = 0;
  std::uint64_t first_row = 0;  ///< of the document
  std::int64_t rows = 0;
};

/// One sample with its own memory.
struct Sample {
  std::uint64_t index = 0;  ///< number of the sample in its PackedSamples
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> doc_begin;
  std::vector<std::int32_t> positions;
  SampleView view() { return {tokens, targets, doc_begin, positions}; }
};

/// The samples of a token set; wrapped ones are in document order. Evaluation reads wrapped ones
/// through EvalWindows.
class PackedSamples {
 public:
  /// `start_id` and `end_id` frame each document (see above). DataError if the set has no token.
  PackedSamples(std::shared_ptr<const TokenSet> set, std::int32_t start_id, std::int32_t end_id,
                const PackingOptions& options);
  /// start_id = bos_id or else eos_id, end_id = eos_id of `tokenizer`. DataError if the tokenizer
  /// is not the one that made the set, or has no end token.
  PackedSamples(std::shared_ptr<const TokenSet> set, const Tokenizer& tokenizer,
                const PackingOptions& options);

  const TokenSet& set() const { return *set_; }
  const PackingOptions& options() const { return options_; }
  /// Rows of all documents: tokens plus documents.
  std::uint64_t row_count() const { return row_count_; }
  /// Those that predict something: all but the prompts'.
  std::uint64_t trained_row_count() const { return row_count_ - set_->prompt_tokens(); }
  /// Wrapped: ceil(row_count / seq_len).
  std::uint64_t sample_count() const { return sample_count_; }
  /// Bytes of text that all trained rows together predict; empty if the tokens do not tell.
  std::optional<std::uint64_t> source_bytes() const { return set_->source_bytes(); }
  /// What the last row of a document predicts.
  std::int32_t end_id() const { return end_id_; }
  /// Part of the rows of all samples that belong to no document.
  double padding_share() const;
  /// The documents of sample `index` (below sample_count), in the order of its rows.
  std::vector<SamplePiece> pieces(std::uint64_t index) const;
  /// Rows of sample `index` that belong to a document; wrapped: seq_len, but fewer in the last one.
  std::int64_t document_rows(std::uint64_t index) const;

  /// Writes sample `index` (below sample_count) to `out`; returns how many rows predict something.
  std::int64_t read(std::uint64_t index, SampleView out) const;
  /// Writes the seq_len rows from `first_row` (below row_count) of all documents on, whatever the
  /// strategy, to `out`; returns how many of them predict something.
  std::int64_t read_rows(std::uint64_t first_row, SampleView out) const;
  Sample sample(std::uint64_t index) const;

 private:
  /// The document that owns row `row` (below row_count).
  std::uint64_t document_of_row(std::uint64_t row) const;
  std::vector<SamplePiece> wrapped_pieces(std::uint64_t first_row) const;
  std::int64_t write(const std::vector<SamplePiece>& pieces, SampleView out) const;
  std::uint64_t document_first_row(std::uint64_t document) const;
  /// Writes a piece from row `at` of the sample on; returns how many of its rows are trained.
  std::size_t write_piece(const SamplePiece& piece, std::size_t at, const SampleView& out) const;

  std::shared_ptr<const TokenSet> set_;
  std::int32_t start_id_;
  std::int32_t end_id_;
  PackingOptions options_;
  BestFitLayout best_fit_;  // empty when wrapped
  std::uint64_t row_count_ = 0;
  std::uint64_t sample_count_ = 0;
};

/// The order of training: epoch e visits every sample once, in the order given by a permutation
/// keyed by (seed, e).
class SampleStream {
 public:
  /// `name` separates the orders of several sources.
  SampleStream(std::shared_ptr<const PackedSamples> samples, std::uint64_t seed,
               std::string_view name = "samples");

  const PackedSamples& samples() const { return *samples_; }
  /// Samples of one epoch.
  std::uint64_t epoch_size() const { return samples_->sample_count(); }
  /// The sample at position `global_index` of the endless stream; epoch = global_index /
  /// epoch_size.
  std::uint64_t sample_index(std::uint64_t global_index) const;
  /// As PackedSamples::read.
  std::int64_t read(std::uint64_t global_index, SampleView out) const;
  Sample sample_at(std::uint64_t global_index) const;

 private:
  std::shared_ptr<const PackedSamples> samples_;
  PhiloxKey key_;
};

}  // namespace llmtrain::data
