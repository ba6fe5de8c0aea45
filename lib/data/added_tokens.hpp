#pragma once
/// Added tokens: texts such as "<|endoftext|>" that become one token before BPE sees the rest.

#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llmtrain::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;      ///< not empty
  bool normalized = false;  ///< looked for in normalized text, in what the others leave
  bool special = true;
  bool single_word = false;  ///< only where no word character is beside it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space behind it
  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens as Hugging Face does: leftmost first, the longest of those that start there.
/// Immutable.
class AddedTokenSplitter {
 public:
  /// `content` is what is looked for; DataError if it is empty or there twice.
  explicit AddedTokenSplitter(std::vector<AddedToken> tokens);
  AddedTokenSplitter(const AddedTokenSplitter&) = delete;
  AddedTokenSplitter& operator=(const AddedTokenSplitter&) = delete;

  /// Called with the id of an added token, or with kText and a piece of ordinary text.
  using Emit = std::function<void(std::int32_t id, std::string_view text)>;
  static constexpr std::int32_t kText = -1;

  void split(std::string_view text, const Emit& emit) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string_view, const AddedToken*> by_content_;
  std::vector<std::size_t> lengths_[256];  // by first byte, longest first
  std::bitset<256> single_;                // tokens of one byte
  std::bitset<65536> starts_;              // first two bytes of the others
};

}  // namespace llmtrain::data
