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
      set->index().key.tokenizer == fingerprint,
      "the token files were made with another tokenizer (fingerprint {}, this one has "
      "{}); prepare the data again or name that tokenizer",
      set->index().key.tokenizer, fingerprint);
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
}

PackedSamples::PackedSamples(std::shared_ptr<const TokenSet> set, const Tokenizer& tokenizer,
                             const PackingOptions& options)
    : PackedSamples(made_by(std::move(set), tokenizer),
                    tokenizer.bos_id().value_or(end_token(tokenizer)), end_token(tokenizer),
                    options) {}

std::int64_t PackedSamples::document_rows(std::uint64_t index) const {
  require(index < sample_count_, "sample {} of {}", index, sample_count_);
  const auto length = static_cast<std::uint64_t>(options_.seq_len);
  return static_cast<std::int64_t>(std::min(length, row_count_ - index * length));
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
  require(index < sample_count_, "sample {} of {}", index, sample_count_);
  return read_rows(index * static_cast<std::uint64_t>(options_.seq_len), out);
}

std::int64_t PackedSamples::read_rows(std::uint64_t first_row, SampleView out) const {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  require(out.tokens.size() == length && out.targets.size() == length &&
              out.doc_begin.size() == length && out.positions.size() == length,
          "sample views of {}, {}, {} and {} elements for seq_len {}", out.tokens.size(),
          out.targets.size(), out.doc_begin.size(), out.positions.size(), length);
  std::uint64_t row = first_row;
  std::uint64_t document = document_of_row(row);
  const auto filled = static_cast<std::size_t>(std::min<std::uint64_t>(length, row_count_ - row));
  std::size_t at = 0;
  std::size_t trained = 0;
  while (at < filled) {
    const std::uint64_t end = document_first_row(document + 1);
    const std::size_t count = std::min<std::uint64_t>(filled - at, end - row);
    trained += write_segment(document, row, at, count, out);
    at += count;
    row += count;
    ++document;
  }
  for (std::size_t i = filled; i < length; ++i) {
    out.tokens[i] = end_id_;
    out.targets[i] = kNoTarget;
    out.doc_begin[i] = static_cast<std::int32_t>(options_.cross_document_attention ? 0 : filled);
    out.positions[i] = static_cast<std::int32_t>(options_.reset_positions ? i - filled : i);
  }
  return static_cast<std::int64_t>(trained);
}

std::size_t PackedSamples::write_segment(std::uint64_t document, std::uint64_t first_row,
                                         std::size_t at, std::size_t count,
                                         const SampleView& out) const {
  const TokenSet::Document info = set_->document(document);
  const std::uint64_t offset = first_row - (info.token_begin + document);  // row in the document
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
