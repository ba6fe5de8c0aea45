#include "lib/data/inspect.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/utf8.hpp"

namespace llmtrain::data {

std::string visible_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = utf8_char_length(bytes);
    const char c = bytes[0];
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (c == '\r') {
      text += "\\r";
    } else if (c == '\\') {
      text += "\\\\";
    } else if (length > 1 || (length == 1 && c >= ' ' && c != '\x7F')) {
      text += bytes.substr(0, length);
    } else {
      text += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    }
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text;
}

namespace {

class SampleWriter {
 public:
  SampleWriter(const PackedSamples& samples, std::uint64_t index, const Tokenizer& tokenizer,
               const InspectOptions& options)
      : samples_(samples),
        tokenizer_(tokenizer),
        options_(options),
        sample_(samples.sample(index)) {}

  std::string write() {
    const std::int64_t length = samples_.options().seq_len;
    const std::int64_t filled = samples_.document_rows(sample_.index);
    const auto trained = std::count_if(sample_.targets.begin(), sample_.targets.end(),
                                       [](std::int32_t target) { return target != kNoTarget; });
    text_ = fmt::format("sample {} of {}: {} rows, {} predict a token\n", sample_.index,
                        samples_.sample_count(), length, trained);
    std::int64_t at = 0;
    const std::int64_t shown = std::min(filled, options_.max_rows);
    for (const SamplePiece& piece : samples_.pieces(sample_.index)) {
      if (at >= shown) break;
      headline(piece, at);
      body(at, std::min(piece.rows, shown - at));
      at += piece.rows;
    }
    if (shown < filled) text_ += fmt::format("({} more rows)\n", filled - shown);
    if (filled < length) {
      text_ += fmt::format("rows {}..{}: padding\n", filled, length - 1);
    }
    return std::move(text_);
  }

 private:
  void headline(const SamplePiece& piece, std::int64_t at) {
    const TokenSet::Document info = samples_.set().document(piece.document);
    text_ +=
        fmt::format("rows {}..{}: document {} {} ({} tokens{}{})\n", at, at + piece.rows - 1,
                    piece.document, samples_.set().document_name(piece.document), info.token_count,
                    info.source_bytes ? fmt::format(", {} bytes", *info.source_bytes) : "",
                    piece.first_row > 0 ? fmt::format(", from its row {}", piece.first_row) : "");
  }

  void body(std::int64_t at, std::int64_t count) {
    text_ += options_.rows ? "" : "  ";
    for (auto i = static_cast<std::size_t>(at); i < static_cast<std::size_t>(at + count); ++i) {
      if (options_.rows) {
        text_ +=
            fmt::format("  {:>6} position {:<6} sees {}..{}  '{}' ({}) -> {}\n", i,
                        sample_.positions[i], sample_.doc_begin[i], i, visible(sample_.tokens[i]),
                        sample_.tokens[i], target_text(sample_.targets[i]));
      } else if (sample_.targets[i] != kNoTarget) {
        text_ += visible(sample_.targets[i]) + "|";
      } else if (i + 1 < sample_.tokens.size()) {  // what is only read: the next row's token
        text_ += fmt::format("({})|", visible(sample_.tokens[i + 1]));
      }
    }
    text_ += options_.rows ? "" : "\n";
  }

  std::string target_text(std::int32_t id) const {
    return id == kNoTarget ? "nothing" : fmt::format("'{}' ({})", visible(id), id);
  }

  std::string visible(std::int32_t id) const { return visible_text(tokenizer_.token_bytes(id)); }

  const PackedSamples& samples_;
  const Tokenizer& tokenizer_;
  const InspectOptions& options_;
  Sample sample_;
  std::string text_;
};

}  // namespace

std::string inspect_sample(const PackedSamples& samples, std::uint64_t index,
                           const Tokenizer& tokenizer, const InspectOptions& options) {
  return SampleWriter(samples, index, tokenizer, options).write();
}

}  // namespace llmtrain::data
