#include "lib/data/foreign_tokens.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/data/inspect.hpp"
#include "lib/data/parallel.hpp"
#include "lib/data/token_format.hpp"

namespace llmtrain::data {

namespace {

constexpr std::uint64_t kShownTokens = 24;  // of the first document, in the log

/// What the tokenizer says about each id.
class Vocabulary {
 public:
  explicit Vocabulary(const Tokenizer& tokenizer)
      : keeps_text_(tokenizer.keeps_text()), bos_(tokenizer.bos_id()), eos_(tokenizer.eos_id()) {
    bytes_.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      try {
        bytes_.push_back(static_cast<std::int64_t>(tokenizer.token_bytes(id).size()));
      } catch (const DataError&) {
        bytes_.push_back(kNoToken);
      }
    }
  }

  std::uint64_t size() const { return bytes_.size(); }
  bool keeps_text() const { return keeps_text_; }
  /// Whether `id` is the start or the end token.
  bool is_frame(std::int64_t id) const { return id == bos_ || id == eos_; }
  /// Bytes of text of token `id`; kNoToken if there is none.
  std::int64_t bytes(std::int64_t id) const {
    const auto index = static_cast<std::uint64_t>(id);  // a negative one is large
    return index < bytes_.size() ? bytes_[index] : kNoToken;
  }
  static constexpr std::int64_t kNoToken = -1;

 private:
  bool keeps_text_;
  std::optional<std::int32_t> bos_, eos_;
  std::vector<std::int64_t> bytes_;
};

/// A document in its file; token_end counts the tokens of one part of the file's documents.
struct ForeignDocument {
  std::uint64_t first = 0;  // id of the file
  std::uint64_t token_end = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t number = 0;
};

/// The mapped file, for both parts.
struct MappedTokens {
  std::string name;  // as the held-out rule sees it
  std::string path;
  TokenLayout layout;
  std::uint64_t vocab_size = 0;
  Hash128 hash;  // of the ids
};

template <class T>
std::int64_t load_id(const std::byte* ids, std::uint64_t index) {
  T id;
  std::memcpy(&id, ids + index * sizeof(T), sizeof id);
  return static_cast<std::int64_t>(id);
}

/// Calls body with a value of the type that `type` stands for.
template <class Body>
void with_id_type(IdType type, const Body& body) {
  switch (type) {
    case IdType::u8:
      return body(std::uint8_t{});
    case IdType::i8:
      return body(std::int8_t{});
    case IdType::u16:
      return body(std::uint16_t{});
    case IdType::i16:
      return body(std::int16_t{});
    case IdType::u32:
      return body(std::uint32_t{});
    case IdType::i32:
      return body(std::int32_t{});
    case IdType::i64:
      return body(std::int64_t{});
  }
  fail("id type {}", static_cast<int>(type));
}

class ForeignPart final : public TokenFile {
 public:
  ForeignPart(std::shared_ptr<const MappedTokens> tokens, std::vector<ForeignDocument> documents,
              bool bytes_known)
      : tokens_(std::move(tokens)), documents_(std::move(documents)), bytes_known_(bytes_known) {
    documents_.shrink_to_fit();
  }

  std::uint64_t token_count() const override {
    return documents_.empty() ? 0 : documents_.back().token_end;
  }
  std::uint64_t document_count() const override { return documents_.size(); }
  std::uint64_t prompt_tokens() const override { return 0; }

  std::optional<std::uint64_t> source_bytes() const override {
    if (!bytes_known_) return std::nullopt;
    std::uint64_t bytes = 0;
    for (const ForeignDocument& document : documents_) bytes += document.source_bytes;
    return bytes;
  }

  // The places stand for the layout's document ends and for the held-out rule.
  std::string content_hash() const override {
    Hasher128 hasher;
    hasher.update_value(tokens_->hash);
    hasher.update(std::as_bytes(std::span(documents_)));
    return to_hex(hasher.digest());
  }

  TokenDocument document(std::uint64_t index) const override {
    const std::uint64_t begin = token_begin(index);
    const ForeignDocument& document = documents_[index];
    return {.token_begin = begin,
            .token_count = document.token_end - begin,
            .source_bytes = bytes_known_ ? std::optional(document.source_bytes) : std::nullopt,
            .prompt_tokens = 0};
  }

  std::uint64_t token_begin(std::uint64_t index) const override {
    require(index < documents_.size(), "document {} of {}", index, documents_.size());
    return index == 0 ? 0 : documents_[index - 1].token_end;
  }

  std::string document_name(std::uint64_t index) const override {
    require(index < documents_.size(), "document {} of {}", index, documents_.size());
    return data::document_name(tokens_->name, documents_[index].number, false);
  }

  void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const override {
    require(begin <= token_count() && out.size() <= token_count() - begin, "tokens [{}, {}) of {}",
            begin, begin + out.size(), token_count());
    auto document = std::upper_bound(
        documents_.begin(), documents_.end(), begin,
        [](std::uint64_t token, const ForeignDocument& d) { return token < d.token_end; });
    for (; !out.empty(); ++document) {
      const std::uint64_t start =
          document == documents_.begin() ? 0 : std::prev(document)->token_end;
      const std::uint64_t count = std::min<std::uint64_t>(out.size(), document->token_end - begin);
      copy(document->first + (begin - start), out.first(count));
      begin += count;
      out = out.subspan(count);
    }
  }

 private:
  // Checked again: the file may have been changed since it was opened.
  void copy(std::uint64_t first, std::span<std::int32_t> out) const {
    with_id_type(tokens_->layout.type, [&](auto type) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::int64_t id = load_id<decltype(type)>(tokens_->layout.ids.data(), first + i);
        if (static_cast<std::uint64_t>(id) >= tokens_->vocab_size) {
          fail<DataError>(
              "{}: id {} is {} now, outside the vocabulary of {}: the file was changed "
              "while it was read; start again when it is complete",
              tokens_->path, first + i, id, tokens_->vocab_size);
        }
        out[i] = static_cast<std::int32_t>(id);
      }
    });
  }

  std::shared_ptr<const MappedTokens> tokens_;
  std::vector<ForeignDocument> documents_;
  bool bytes_known_;
};

/// Finds and checks the documents of one file.
class Reading {
 public:
  Reading(const SourceFile& file, const Vocabulary& vocabulary, const HeldOutRule& rule)
      : vocabulary_(vocabulary), rule_(rule), tokens_(std::make_shared<MappedTokens>()) {
    tokens_->name = file.name;
    tokens_->path = file.path.string();
    tokens_->layout = file.tokens->open(file.path);
    tokens_->vocab_size = vocabulary.size();
    const TokenLayout& layout = tokens_->layout;
    require<DataError>(vocabulary.size() - 1 <= largest_id(layout.type),
                       "{}: ids of {} bytes go up to {}, but the tokenizer has {} tokens: the file "
                       "was made with another one; name that in tokenizer.path",
                       tokens_->path, size_of(layout.type), largest_id(layout.type),
                       vocabulary.size());
  }

  ForeignTokens read() {
    with_id_type(tokens_->layout.type, [&](auto type) { read_ids<decltype(type)>(); });
    tokens_->hash = hash128(tokens_->layout.ids);
    tokens_->layout.document_ends.reset();
    require<DataError>(
        !training_.empty() || !held_out_.empty(),
        "{}: no document with a token but start and end tokens; leave it out of the data sources",
        tokens_->path);
    return {std::make_unique<ForeignPart>(tokens_, std::move(training_), bytes_known_),
            std::make_unique<ForeignPart>(tokens_, std::move(held_out_), bytes_known_), empty_,
            undivided_, std::move(first_tokens_)};
  }

 private:
  template <class T>
  void read_ids() {
    const TokenLayout& layout = tokens_->layout;
    const std::uint64_t count = layout.ids.size() / sizeof(T);
    const std::byte* ids = layout.ids.data();
    std::uint64_t begin = 0;
    undivided_ = !layout.document_ends;
    if (layout.document_ends) {
      for (const std::uint64_t end : *layout.document_ends) {
        add_trimmed<T>(begin, end);
        begin = end;
      }
      return;
    }
    for (std::uint64_t i = 0; i <= count; ++i) {
      if (i < count && !vocabulary_.is_frame(load_id<T>(ids, i))) continue;
      if (i < count) undivided_ = false;
      if (i > begin) add<T>(begin, i);
      begin = i + 1;
    }
  }

  /// A document that the layout names: without the start and end tokens at its ends.
  template <class T>
  void add_trimmed(std::uint64_t begin, std::uint64_t end) {
    const std::byte* ids = tokens_->layout.ids.data();
    while (begin < end && vocabulary_.is_frame(load_id<T>(ids, begin))) ++begin;
    while (begin < end && vocabulary_.is_frame(load_id<T>(ids, end - 1))) --end;
    if (begin < end) {
      add<T>(begin, end);
    } else {
      ++empty_;
      ++documents_;
    }
  }

  template <class T>
  void add(std::uint64_t begin, std::uint64_t end) {
    const std::byte* ids = tokens_->layout.ids.data();
    std::int64_t bytes = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::int64_t id = load_id<T>(ids, i);
      const std::int64_t own = vocabulary_.bytes(id);
      if (own == Vocabulary::kNoToken) refuse(i, id);
      if (vocabulary_.is_frame(id)) bytes_known_ = false;
      bytes += own;
    }
    for (std::uint64_t i = begin; documents_ == empty_ && i < std::min(end, begin + kShownTokens);
         ++i) {
      first_tokens_.push_back(static_cast<std::int32_t>(load_id<T>(ids, i)));
    }
    const std::uint64_t number = documents_++;
    auto& part =
        is_held_out(document_name(tokens_->name, number, false), rule_) ? held_out_ : training_;
    const std::uint64_t before = part.empty() ? 0 : part.back().token_end;
    part.push_back({begin, before + (end - begin), static_cast<std::uint64_t>(bytes), number});
  }

  [[noreturn]] void refuse(std::uint64_t index, std::int64_t id) const {
    const TokenLayout& layout = tokens_->layout;
    fail<DataError>(
        "{}: id {} (offset {}) is {}, which the tokenizer with {} tokens does not have: "
        "the file was made with another one; name that in tokenizer.path",
        tokens_->path, index, layout.ids_offset + index * size_of(layout.type), id,
        vocabulary_.size());
  }

  const Vocabulary& vocabulary_;
  const HeldOutRule& rule_;
  std::shared_ptr<MappedTokens> tokens_;
  std::vector<ForeignDocument> training_, held_out_;
  bool bytes_known_ = vocabulary_.keeps_text();
  bool undivided_ = false;
  std::uint64_t documents_ = 0, empty_ = 0;
  std::vector<std::int32_t> first_tokens_;
};

}  // namespace

std::vector<ForeignTokens> open_foreign_tokens(std::span<const SourceFile> files,
                                               const Tokenizer& tokenizer,
                                               const HeldOutRule& rule) {
  std::vector<ForeignTokens> opened(files.size());
  if (files.empty()) return opened;
  const Vocabulary vocabulary(tokenizer);
  parallel_for(files.size(), [&](std::size_t i) {
    require(files[i].tokens != nullptr, "{} holds no tokens", files[i].path.string());
    opened[i] = Reading(files[i], vocabulary, rule).read();
  });
  return opened;
}

void log_foreign_tokens(std::span<const SourceFile> files, std::span<const ForeignTokens> opened,
                        const Tokenizer& tokenizer) {
  if (files.empty()) return;
  std::uint64_t documents = 0, empty = 0, tokens = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const ForeignTokens& file = opened[i];
    const std::uint64_t own = file.training->token_count() + file.held_out->token_count();
    documents += file.training->document_count() + file.held_out->document_count();
    empty += file.empty_documents;
    tokens += own;
    if (!file.undivided) continue;
    log::warning(
        "{}: no start or end token of the tokenizer among {} tokens, so the file is one document; "
        "was it made with another tokenizer?",
        files[i].path.string(), own);
  }
  log::info(
      "token files, {} from {} on: {} tokens, {} documents, {} empty ones left out; with this "
      "tokenizer they begin '{}'",
      files.size(), files.front().path.string(), tokens, documents, empty,
      visible_text(tokenizer.decode(opened.front().first_tokens)));
}

}  // namespace llmtrain::data
