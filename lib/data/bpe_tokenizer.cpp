#include "lib/data/bpe_tokenizer.hpp"

#include <array>
#include <cstring>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/data/byte_level.hpp"
#include "lib/data/json_field.hpp"

namespace llmtrain::data {

namespace {

/// Tokens of short pieces seen before. Direct-mapped, so its size is fixed and the newest piece
/// wins.
class PieceCache {
 public:
  static constexpr std::size_t kMaxBytes = 23;
  static constexpr std::size_t kMaxTokens = 9;

  struct Key {
    std::array<std::uint64_t, 3> words{};  // the piece, zero-padded; its length in the last byte
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::uint32_t count = 0;  // 0: never used
    std::array<std::int32_t, kMaxTokens> tokens;
  };
  static_assert(sizeof(Entry) == 64);  // one cache line

  PieceCache() : entries_(kEntries) {}

  static Key key(std::string_view piece) {
    char bytes[24] = {};
    std::memcpy(bytes, piece.data(), piece.size());
    bytes[23] = static_cast<char>(piece.size());
    Key key;
    std::memcpy(key.words.data(), bytes, sizeof bytes);
    return key;
  }

  Entry& entry(const Key& key) {
    std::uint64_t hash = 0;
    for (const std::uint64_t word : key.words) {
      hash = (hash ^ word) * 0x9FB21C651E98DF25u;
      hash ^= hash >> 32;
    }
    return entries_[hash & (kEntries - 1)];
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  std::vector<Entry> entries_;
};

}  // namespace

class BpeTokenizer::Worker {
 public:
  explicit Worker(const BpeTokenizer& owner)
      : owner_(owner),
        splitter_(*owner.pre_tokenizer_),
        whole_pieces_only_(owner.definition_.byte_level || owner.definition_.ignore_merges) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) {
    const Normalizer& normalizer = owner_.definition_.normalizer;
    owner_.added_->split(text, [&](std::int32_t id, std::string_view part) {
      const bool at_start = part.data() == text.data();
      if (id != AddedTokenSplitter::kText) {
        out.push_back(id);
      } else if (normalizer.empty()) {
        encode_normalized(part, at_start, out);
      } else {
        encode_normalized(normalizer.apply(part), at_start, out);
      }
    });
  }

 private:
  void encode_normalized(std::string_view text, bool at_start, std::vector<std::int32_t>& out) {
    owner_.added_normalized_->split(text, [&](std::int32_t id, std::string_view part) {
      if (id != AddedTokenSplitter::kText) return out.push_back(id);
      splitter_.split(
          part, [&](std::string_view piece) { encode_piece(piece, out); },
          at_start && part.data() == text.data());
    });
  }

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& out) {
    if (whole_pieces_only_) return encode_through_cache(piece, out);
    while (!piece.empty()) {
      const std::size_t length = owner_.symbols_->independent_prefix(piece);
      encode_through_cache(piece.substr(0, length), out);
      piece.remove_prefix(length);
    }
  }

  void encode_through_cache(std::string_view piece, std::vector<std::int32_t>& out) {
    if (piece.size() > PieceCache::kMaxBytes) return merge_piece(piece, out);
    const PieceCache::Key key = PieceCache::key(piece);
    PieceCache::Entry& entry = cache_.entry(key);
    if (entry.count > 0 && entry.key == key) {
      out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
      return;
    }
    const std::size_t before = out.size();
    merge_piece(piece, out);
    const std::size_t count = out.size() - before;
    if (count > PieceCache::kMaxTokens) return;
    entry.key = key;
    entry.count = static_cast<std::uint32_t>(count);
    std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), entry.tokens.begin());
  }

  void merge_piece(std::string_view piece, std::vector<std::int32_t>& out) {
    if (owner_.definition_.ignore_merges) {
      const auto found = owner_.whole_pieces_.find(std::string(piece));
      if (found != owner_.whole_pieces_.end()) return out.push_back(found->second);
    }
    scratch_.symbols.clear();
    owner_.symbols_->append(piece, scratch_.symbols);
    owner_.merger_->merge(scratch_);
    out.insert(out.end(), scratch_.symbols.begin(), scratch_.symbols.end());
  }

  const BpeTokenizer& owner_;
  PreTokenizer::Worker splitter_;
  bool whole_pieces_only_;
  BpeMerger::Scratch scratch_;
  PieceCache cache_;
};

BpeTokenizer::BpeTokenizer(BpeDefinition definition) : definition_(std::move(definition)) {
  index_tokens();
  check_special_ids();
  check_merges();
  make_symbols();
  merger_.emplace(definition_.merges);
  pre_tokenizer_.emplace(definition_.pre_tokenizer);
  index_added_tokens();
  Hasher128 hasher;
  // What stands around a text does not change its ids.
  hasher.update(json_with(PostProcessor()));
  hasher.update_value(std::int64_t{definition_.eos_id.value_or(-1)});
  hasher.update_value(std::int64_t{definition_.bos_id.value_or(-1)});
  fingerprint_ = hasher.digest().low;
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::index_tokens() {
  std::size_t size = definition_.vocab.size();
  for (const AddedToken& token : definition_.added_tokens) {
    require<DataError>(token.id >= 0, "added token '{}' has the id {}; {}", token.content, token.id,
                       kSaveAgain);
    size = std::max(size, static_cast<std::size_t>(token.id) + 1);
  }
  spellings_ = definition_.vocab;
  spellings_.resize(size);
  bytes_.resize(size);
  const Decoder& decoder = definition_.decoder;
  for (std::size_t id = 0; id < definition_.vocab.size(); ++id) {
    const std::string& spelling = definition_.vocab[id];
    // A token with characters outside the table is reachable as an added token only.
    if (decoder.is_byte_level()) bytes_[id] = from_byte_level(spelling).value_or(spelling);
  }
  for (const AddedToken& token : definition_.added_tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    require<DataError>(!token.content.empty(), "added token {} is empty; {}", token.id, kSaveAgain);
    require<DataError>(spellings_[id].empty() || spellings_[id] == token.content,
                       "added token '{}' has the id {} of another token; {}", token.content,
                       token.id, kSaveAgain);
    spellings_[id] = token.content;
    bytes_[id] = token.content;
  }
  for (std::size_t id = 0; id < size && !decoder.is_byte_level(); ++id) {
    if (spellings_[id].empty()) continue;
    const std::string after_x = decoder.decode({"x", spellings_[id]});
    bytes_[id] = after_x.starts_with('x') ? after_x.substr(1) : decoder.decode({spellings_[id]});
  }
}

void BpeTokenizer::check_special_ids() const {
  const auto is_token = [&](std::int32_t id) {
    return id >= 0 && id < vocab_size() && !spellings_[static_cast<std::size_t>(id)].empty();
  };
  for (const auto& id : {definition_.eos_id, definition_.bos_id}) {
    require<DataError>(!id || is_token(*id), "start or end token {} is not in the vocabulary; {}",
                       id.value_or(-1), kSaveAgain);
  }
  for (const std::int32_t id : frame()) {
    require<DataError>(id == PostProcessor::kText || is_token(id),
                       "post_processor: token {} is not in the vocabulary; {}", id, kSaveAgain);
  }
}

void BpeTokenizer::index_added_tokens() {
  std::vector<AddedToken> literal;
  std::vector<AddedToken> normalized;
  for (AddedToken token : definition_.added_tokens) {
    if (!token.normalized) {
      literal.push_back(std::move(token));
      continue;
    }
    if (!definition_.normalizer.empty()) {
      token.content = definition_.normalizer.apply(token.content);
      // Hugging Face decodes to the normalized form.
      spellings_[static_cast<std::size_t>(token.id)] = token.content;
    }
    normalized.push_back(std::move(token));
  }
  const auto& metaspace = definition_.pre_tokenizer.metaspace;
  require<DataError>(
      !metaspace || metaspace->prepend != Metaspace::Prepend::first ||
          definition_.normalizer.empty() ||
          (definition_.normalizer.keeps_start() && normalized.empty()),
      "pre_tokenizer.prepend_scheme: 'first' is not supported beside a normalizer that moves the "
      "text's beginning, or beside normalized added tokens with any normalizer; use 'always'");
  added_.emplace(std::move(literal));
  added_normalized_.emplace(std::move(normalized));
}

void BpeTokenizer::check_merges() const {
  const auto limit = static_cast<std::int32_t>(definition_.vocab.size());
  const auto is_token = [&](std::int32_t id) {
    return id >= 0 && id < limit && !definition_.vocab[static_cast<std::size_t>(id)].empty();
  };
  for (const Merge& m : definition_.merges) {
    require<DataError>(is_token(m.left) && is_token(m.right) && is_token(m.merged),
                       "merge ({}, {}) -> {}: not all are tokens; {}", m.left, m.right, m.merged,
                       kSaveAgain);
    const auto& text = [&](std::int32_t id) -> const std::string& {
      return definition_.vocab[static_cast<std::size_t>(id)];
    };
    require<DataError>(text(m.left) + text(m.right) == text(m.merged),
                       "merge of '{}' and '{}' gives '{}'; {}", text(m.left), text(m.right),
                       text(m.merged), kSaveAgain);
  }
}

void BpeTokenizer::make_symbols() {
  std::array<std::int32_t, 256> byte_ids{};
  byte_ids.fill(-1);
  for (std::size_t id = 0; id < definition_.vocab.size(); ++id) {
    const std::string& spelling = definition_.vocab[id];
    const std::optional<std::string> bytes =
        definition_.byte_level ? from_byte_level(spelling) : spelling;
    if (!bytes || bytes->empty()) continue;
    if (definition_.byte_level && bytes->size() == 1) {
      byte_ids[static_cast<unsigned char>(bytes->front())] = static_cast<std::int32_t>(id);
    }
    if (definition_.ignore_merges) whole_pieces_.emplace(*bytes, static_cast<std::int32_t>(id));
  }
  if (!definition_.byte_level) {
    symbols_.emplace(definition_.vocab, definition_.merges, definition_.unknown);
    return;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    require<DataError>(byte_ids[byte] >= 0,
                       "vocabulary has no token for byte 0x{:02X}; use a tokenizer that was "
                       "trained from the alphabet of all bytes",
                       byte);
  }
  symbols_.emplace(byte_ids);
}

std::unique_ptr<BpeTokenizer::Worker> BpeTokenizer::take_worker() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_workers_.empty()) {
      std::unique_ptr<Worker> worker = std::move(idle_workers_.back());
      idle_workers_.pop_back();
      return worker;
    }
  }
  return std::make_unique<Worker>(*this);
}

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& out) const {
  std::unique_ptr<Worker> worker = take_worker();
  worker->encode(text, out);
  const std::lock_guard lock(mutex_);
  idle_workers_.push_back(std::move(worker));
}

std::string_view BpeTokenizer::token_bytes(std::int32_t id) const {
  require<DataError>(
      id >= 0 && id < vocab_size() && !spellings_[static_cast<std::size_t>(id)].empty(),
      "token {} is not in the vocabulary of {} tokens", id, vocab_size());
  return bytes_[static_cast<std::size_t>(id)];
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  if (definition_.decoder.is_byte_level()) return Tokenizer::decode(ids);
  std::vector<std::string> spellings;
  spellings.reserve(ids.size());
  for (const std::int32_t id : ids) {
    token_bytes(id);  // refuses an id that does not exist
    spellings.push_back(spellings_[static_cast<std::size_t>(id)]);
  }
  return definition_.decoder.decode(std::move(spellings));
}

bool BpeTokenizer::keeps_text() const {
  bool strips = false;
  for (const AddedToken& token : definition_.added_tokens) {
    strips = strips || token.lstrip || token.rstrip;
  }
  return definition_.byte_level && definition_.decoder.is_byte_level() &&
         definition_.normalizer.empty() && !definition_.pre_tokenizer.prefix_space_after && !strips;
}

}  // namespace llmtrain::data
