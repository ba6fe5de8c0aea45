#include "lib/data/bpe_symbols.hpp"

#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"
#include "lib/data/byte_level.hpp"
#include "lib/data/unicode.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kPages = 0x110000 >> 8;

struct Character {
  std::uint32_t code_point = 0;
  std::size_t length = 0;  // 0: a stray byte
};

Character first_character(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) return {byte, 1};
  const std::size_t length = utf8_char_length(text);
  return {length == 0 ? 0 : decode_utf8(text), length};
}

}  // namespace

BpeSymbols::CharacterTable::CharacterTable() : page_of_(kPages), pages_(1) {
  pages_[0].fill(kNone);
}

void BpeSymbols::CharacterTable::set(std::uint32_t code_point, std::int32_t id) {
  std::uint16_t& page = page_of_[code_point >> 8];
  if (page == 0) {
    page = static_cast<std::uint16_t>(pages_.size());
    pages_.emplace_back().fill(kNone);
  }
  pages_[page][code_point & 0xFF] = id;
}

BpeSymbols::BpeSymbols(std::span<const std::int32_t, 256> byte_ids) {
  std::copy(byte_ids.begin(), byte_ids.end(), byte_ids_.begin());
}

BpeSymbols::BpeSymbols(std::span<const std::string> vocab, std::span<const Merge> merges,
                       const Unknown& unknown)
    : unknown_(unknown) {
  byte_ids_.fill(kNone);
  auto characters = std::make_unique<CharacterTable>();
  for (std::size_t id = 0; id < vocab.size(); ++id) {
    const std::string& spelling = vocab[id];
    if (spelling.empty()) continue;
    if (utf8_char_length(spelling) == spelling.size()) {
      characters->set(decode_utf8(spelling), static_cast<std::int32_t>(id));
    }
    const auto byte = unknown_.byte_fallback ? byte_of_token(spelling) : std::nullopt;
    if (byte && spelling == byte_token(*byte)) byte_ids_[*byte] = static_cast<std::int32_t>(id);
  }
  characters_ = std::move(characters);
  const bool all_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), kNone) == byte_ids_.end();
  require<DataError>(
      all_bytes || unknown_.unk_id,
      "characters outside the vocabulary would vanish: unk_token is missing, and {}; "
      "use a tokenizer with one of them",
      unknown_.byte_fallback ? "not all 256 tokens <0xNN> are there" : "byte_fallback is off");
  index_joins(vocab, merges);
}

void BpeSymbols::index_joins(std::span<const std::string> vocab, std::span<const Merge> merges) {
  joins_.resize(vocab.size());
  for (Joins& joins : joins_) joins.left.fill(kNone);
  const auto text = [&](std::int32_t id) -> std::string_view {
    return vocab[static_cast<std::size_t>(id)];
  };
  for (const Merge& merge : merges) {
    const std::int32_t left = (*characters_)[decode_utf8(last_character(text(merge.left)))];
    const std::int32_t right = (*characters_)[decode_utf8(text(merge.right))];
    if (left == kNone || right == kNone) continue;  // characters that are never symbols
    Joins& joins = joins_[static_cast<std::size_t>(right)];
    if (std::find(joins.left.begin(), joins.left.end(), left) != joins.left.end()) continue;
    const auto free = std::find(joins.left.begin(), joins.left.end(), kNone);
    if (free == joins.left.end()) {
      joins.few = false;
    } else {
      *free = left;
    }
  }
}

std::size_t BpeSymbols::independent_prefix(std::string_view text) const {
  if (!characters_ || text.empty()) return text.size();
  const Character first = first_character(text);
  std::size_t at = std::max<std::size_t>(first.length, 1);
  std::int32_t left = first.length == 0 ? kNone : (*characters_)[first.code_point];
  while (at < text.size()) {
    const Character next = first_character(text.substr(at));
    const std::int32_t right = next.length == 0 ? kNone : (*characters_)[next.code_point];
    // Next to an unknown character there may be a run of unknown tokens that is one.
    if (left != kNone && right != kNone) {
      const Joins& joins = joins_[static_cast<std::size_t>(right)];
      if (joins.few && std::find(joins.left.begin(), joins.left.end(), left) == joins.left.end()) {
        return at;
      }
    }
    at += std::max<std::size_t>(next.length, 1);
    left = right;
  }
  return at;
}

void BpeSymbols::append(std::string_view text, std::vector<std::int32_t>& symbols) const {
  if (characters_) return append_characters(text, symbols);
  const std::size_t before = symbols.size();
  symbols.resize(before + text.size());
  std::transform(text.begin(), text.end(), symbols.begin() + static_cast<std::ptrdiff_t>(before),
                 [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; });
}

bool BpeSymbols::append_byte_tokens(std::string_view character,
                                    std::vector<std::int32_t>& symbols) const {
  for (const char c : character) {
    if (byte_ids_[static_cast<unsigned char>(c)] == kNone) return false;
  }
  for (const char c : character) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  return true;
}

void BpeSymbols::append_characters(std::string_view text,
                                   std::vector<std::int32_t>& symbols) const {
  // Hugging Face keeps an unknown token back until a known character or the end, so that byte
  // tokens after it come out before it.
  bool unknown_waits = false;
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t length = std::max<std::size_t>(character.length, 1);
    const std::int32_t id = character.length == 0 ? kNone : (*characters_)[character.code_point];
    if (id != kNone) {
      if (unknown_waits) symbols.push_back(*unknown_.unk_id);
      unknown_waits = false;
      symbols.push_back(id);
    } else if (!append_byte_tokens(text.substr(0, length), symbols)) {
      if (unknown_waits && !unknown_.fuse_unk) symbols.push_back(*unknown_.unk_id);
      unknown_waits = true;
    }
    text.remove_prefix(length);
  }
  if (unknown_waits) symbols.push_back(*unknown_.unk_id);
}

}  // namespace llmtrain::data
