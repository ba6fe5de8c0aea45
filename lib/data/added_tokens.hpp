#pragma once
/// Added tokens: texts such as "<|endoftext|>" that become one token before BPE sees the rest.

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
  bool normalized = false;  ///< looked for only in the text that the others leave
  bool special = true;
  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens as Hugging Face does: leftmost first, the longest of those that start there;
/// those with normalized = false first, the others in what is left. Immutable.
class AddedTokenSplitter {
 public:
  explicit AddedTokenSplitter(const std::vector<AddedToken>& tokens);

  /// Called with the id of an added token, or with kText and a piece of ordinary text.
  using Emit = std::function<void(std::int32_t id, std::string_view text)>;
  static constexpr std::int32_t kText = -1;

  void split(std::string_view text, const Emit& emit) const;

 private:
  struct Pass {
    std::unordered_map<std::string_view, std::int32_t> ids;
    std::vector<std::size_t> lengths[256];  // by first byte, longest first
    bool starts[256] = {};
  };
  void split(std::size_t pass, std::string_view text, const Emit& emit) const;

  std::vector<AddedToken> tokens_;  // owns the texts
  Pass passes_[2];
};

}  // namespace llmtrain::data
