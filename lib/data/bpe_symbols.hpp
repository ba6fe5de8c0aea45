#pragma once
/// The symbols that BPE starts from: bytes, or characters with a way out for unknown ones.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/bpe_merger.hpp"

namespace llmtrain::data {

/// Immutable.
class BpeSymbols {
 public:
  /// Each byte is a symbol: `byte_ids[b]`.
  explicit BpeSymbols(std::span<const std::int32_t, 256> byte_ids);

  struct Unknown {
    bool byte_fallback = false;  ///< a character becomes the tokens <0xNN> of its bytes
    std::optional<std::int32_t> unk_id;
    bool fuse_unk = false;  ///< one unknown token for a run of characters
  };
  /// Each character that is a token is a symbol; `vocab` by id as in BpeDefinition. DataError if a
  /// character could be neither: it would vanish.
  BpeSymbols(std::span<const std::string> vocab, std::span<const Merge> merges,
             const Unknown& unknown);

  /// Appends the symbols of `text`. A byte that is not UTF-8 counts as an unknown character.
  void append(std::string_view text, std::vector<std::int32_t>& symbols) const;

  /// Bytes at the front of `text`, at least one character, that can be merged for themselves: no
  /// merge of the table joins what ends there with what begins there. The whole of a byte-level
  /// text.
  std::size_t independent_prefix(std::string_view text) const;

 private:
  /// Code points to ids, in pages of 256; kNone where a character is no token.
  class CharacterTable {
   public:
    void set(std::uint32_t code_point, std::int32_t id);
    std::int32_t operator[](std::uint32_t code_point) const {
      return pages_[page_of_[code_point >> 8]][code_point & 0xFF];
    }
    CharacterTable();

   private:
    std::vector<std::uint16_t> page_of_;
    std::vector<std::array<std::int32_t, 256>> pages_;
  };
  static constexpr std::int32_t kNone = -1;

  void append_characters(std::string_view text, std::vector<std::int32_t>& symbols) const;
  bool append_byte_tokens(std::string_view character, std::vector<std::int32_t>& symbols) const;
  void index_joins(std::span<const std::string> vocab, std::span<const Merge> merges);

  std::array<std::int32_t, 256> byte_ids_;            // bytes, or the tokens <0xNN>
  std::unique_ptr<const CharacterTable> characters_;  // null: byte-level
  Unknown unknown_;
  /// By id of a character that merges join to few characters before it: those characters' ids.
  static constexpr std::size_t kFewJoins = 4;
  struct Joins {
    bool few = true;
    std::array<std::int32_t, kFewJoins> left;
  };
  std::vector<Joins> joins_;
};

}  // namespace llmtrain::data
