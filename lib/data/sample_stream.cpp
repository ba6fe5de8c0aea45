#include "lib/data/sample_stream.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/data/permutation.hpp"

namespace llmtrain::data {

namespace {

std::int32_t end_token(const Tokenizer& tokenizer) {
  require<DataError>(tokenizer.eos_id().has_value(),
                     "the tokenizer has no end token, which packing needs between documents; name "
                     "one as eos_token in a tokenizer_config.json beside its tokenizer.json");
  return *tokenizer.eos_id();
}

std::shared_ptr<const TokenSet> made_by(std::shared_ptr<const TokenSet> set,
                                        const Tokenizer& tokenizer) {
  const std::string fingerprint = fmt::format("{:016x}", tokenizer.fingerprint());
  require<DataError>(
      set->tokenizer() == fingerprint,
      "the token files were made with another tokenizer (fingerprint {}, this one has "
      "{}); prepare the data again or name that tokenizer",
      set->tokenizer(), fingerprint);
  return set;
}

}  // namespace

PackedSamples::PackedSamples(std::shared_ptr<const TokenSet> set, std::int32_t start_id,
                             std::int32_t end_id, const PackingOptions& options)
    : set_(std::move(set)), start_id_(start_id), end_id_(end_id), options_(options) {
  require<RecipeError>(
      options.seq_len >= 1 && options.seq_len <= std::numeric_limits<std::int32_t>::max(),
      "seq_len {} is not a positive 32-bit number", options.seq_len);
  require<DataError>(set_->document_count() > 0,
                     "the token set holds no document; check data.sources and the held-out rule");
  for (const std::int32_t id : {start_id, end_id}) {
    require<DataError>(id >= 0 && static_cast<std::uint64_t>(id) < set_->vocab_size(),
                       "start or end token {} is outside the vocabulary of {}", id,
                       set_->vocab_size());
  }
  row_count_ = set_->token_count() + set_->document_count();
  const auto length = static_cast<std::uint64_t>(options.seq_len);
  sample_count_ = (row_count_ + length - 1) / length;
  if (options.strategy == PackingStrategy::wrapped) return;
  best_fit_ = pack_best_fit(
      set_->document_count(), static_cast<std::uint32_t>(length), [this](std::uint64_t document) {
        return document_first_row(document + 1) - document_first_row(document);
      });
  sample_count_ = best_fit_.starts.size() - 1;
}

PackedSamples::PackedSamples(std::shared_ptr<const TokenSet> set, const Tokenizer& tokenizer,
                             const PackingOptions& options)
    : PackedSamples(made_by(std::move(set), tokenizer),
                    tokenizer.bos_id().value_or(end_token(tokenizer)), end_token(tokenizer),
                    options) {}

double PackedSamples::padding_share() const {
  const double rows = static_cast<double>(sample_count_) * static_cast<double>(options_.seq_len);
  return 1 - static_cast<double>(row_count_) / rows;
}

std::int64_t PackedSamples::document_rows(std::uint64_t index) const {
  std::int64_t rows = 0;
  for (const SamplePiece& piece : pieces(index)) rows += piece.rows;
  return rows;
}

std::vector<SamplePiece> PackedSamples::pieces(std::uint64_t index) const {
  require(index < sample_count_, "sample {} of {}", index, sample_count_);
  const auto length = static_cast<std::uint64_t>(options_.seq_len);
  if (options_.strategy == PackingStrategy::wrapped) return wrapped_pieces(index * length);
  std::vector<SamplePiece> pieces;
  for (std::uint64_t i = best_fit_.starts[index]; i < best_fit_.starts[index + 1]; ++i) {
    const PackedChunk& chunk = best_fit_.chunks[i];
    pieces.push_back({chunk.document, chunk.chunk * length, chunk.rows});
  }
  return pieces;
}

std::vector<SamplePiece> PackedSamples::wrapped_pieces(std::uint64_t first_row) const {
  std::uint64_t row = first_row;
  std::uint64_t document = document_of_row(row);
  const auto length = static_cast<std::uint64_t>(options_.seq_len);
  const std::uint64_t end = row + std::min(length, row_count_ - row);
  std::vector<SamplePiece> pieces;
  for (; row < end; ++document) {
    const std::uint64_t next = std::min(end, document_first_row(document + 1));
    pieces.push_back(
        {document, row - document_first_row(document), static_cast<std::int64_t>(next - row)});
    row = next;
  }
  return pieces;
}

std::uint64_t PackedSamples::document_first_row(std::uint64_t document) const {
  return set_->token_begin(document) + document;
}

std::uint64_t PackedSamples::document_of_row(std::uint64_t row) const {
  require(row < row_count_, "row {} of {}", row, row_count_);
  std::uint64_t low = 0;  // first_row(low) <= row < first_row(high)
  std::uint64_t high = set_->document_count();
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (document_first_row(middle) <= row ? low : high) = middle;
  }
  return low;
}

std::int64_t PackedSamples::read(std::uint64_t index, SampleView out) const {
  return write(pieces(index), out);
}

std::int64_t PackedSamples::read_rows(std::uint64_t first_row, SampleView out) const {
  return write(wrapped_pieces(first_row), out);
}

std::int64_t PackedSamples::write(const std::vector<SamplePiece>& pieces, SampleView out) const {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  require(out.tokens.size() == length && out.targets.size() == length &&
              out.doc_begin.size() == length && out.positions.size() == length,
          "sample views of {}, {}, {} and {} elements for seq_len {}", out.tokens.size(),
          out.targets.size(), out.doc_begin.size(), out.positions.size(), length);
  std::size_t filled = 0;
  std::size_t trained = 0;
  for (const SamplePiece& piece : pieces) {
    trained += write_piece(piece, filled, out);
    filled += static_cast<std::size_t>(piece.rows);
  }
  for (std::size_t i = filled; i < length; ++i) {
    out.tokens[i] = end_id_;
    out.targets[i] = kNoTarget;
    out.doc_begin[i] = static_cast<std::int32_t>(options_.cross_document_attention ? 0 : filled);
    out.positions[i] = static_cast<std::int32_t>(options_.reset_positions ? i - filled : i);
  }
  return static_cast<std::int64_t>(trained);
}

std::size_t PackedSamples::write_piece(const SamplePiece& piece, std::size_t at,
                                       const SampleView& out) const {
  const TokenSet::Document info = set_->document(piece.document);
  const std::uint64_t offset = piece.first_row;
  const auto count = static_cast<std::size_t>(piece.rows);
  // Row r of a document predicts its token r and reads its token r - 1.
  const auto targets = out.targets.subspan(at, count);
  const bool ends_here = offset + count == info.token_count + 1;
  set_->read_tokens(info.token_begin + offset, targets.first(count - (ends_here ? 1 : 0)));
  if (ends_here) targets.back() = end_id_;
  const auto tokens = out.tokens.subspan(at, count);
  std::copy(targets.begin(), targets.end() - 1, tokens.begin() + 1);
  if (offset == 0) {
    tokens.front() = start_id_;
  } else {
    set_->read_tokens(info.token_begin + offset - 1, tokens.first(1));
  }
  for (std::size_t i = at; i < at + count; ++i) {
    out.doc_begin[i] = static_cast<std::int32_t>(options_.cross_document_attention ? 0 : at);
    out.positions[i] = static_cast<std::int32_t>(options_.reset_positions ? i - at : i);
  }
  const std::size_t prompt =
      std::min<std::uint64_t>(count, info.prompt_tokens - std::min(info.prompt_tokens, offset));
  std::fill_n(targets.begin(), prompt, kNoTarget);
  return count - prompt;
}

Sample PackedSamples::sample(std::uint64_t index) const {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  Sample sample;
  sample.index = index;
  for (auto* values : {&sample.tokens, &sample.targets, &sample.doc_begin, &sample.positions}) {
    values->resize(length);
  }
  read(index, sample.view());
  return sample;
}

SampleStream::SampleStream(std::shared_ptr<const PackedSamples> samples, std::uint64_t seed,
                           std::string_view name)
    : samples_(std::move(samples)), key_(philox_key(seed, "shuffle", name)) {}

std::uint64_t SampleStream::sample_index(std::uint64_t global_index) const {
  const std::uint64_t epoch = global_index / epoch_size();
  return Permutation(key_, epoch, epoch_size())(global_index % epoch_size());
}

std::int64_t SampleStream::read(std::uint64_t global_index, SampleView out) const {
  return samples_->read(sample_index(global_index), out);
}

Sample SampleStream::sample_at(std::uint64_t global_index) const {
  return samples_->sample(sample_index(global_index));
}

}  // namespace llmtrain::data
