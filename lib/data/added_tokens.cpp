#include "lib/data/added_tokens.hpp"

#include <algorithm>

namespace llmtrain::data {

AddedTokenSplitter::AddedTokenSplitter(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  for (const AddedToken& token : tokens_) {
    Pass& pass = passes_[token.normalized ? 1 : 0];
    pass.ids.emplace(token.content, token.id);
    const auto first = static_cast<unsigned char>(token.content[0]);
    pass.starts[first] = true;
    auto& lengths = pass.lengths[first];
    if (std::find(lengths.begin(), lengths.end(), token.content.size()) == lengths.end()) {
      lengths.push_back(token.content.size());
    }
  }
  for (Pass& pass : passes_) {
    for (auto& lengths : pass.lengths) std::sort(lengths.rbegin(), lengths.rend());
  }
}

void AddedTokenSplitter::split(std::string_view text, const Emit& emit) const {
  split(0, text, emit);
}

void AddedTokenSplitter::split(std::size_t pass_index, std::string_view text,
                               const Emit& emit) const {
  if (pass_index == 2) {
    if (!text.empty()) emit(kText, text);
    return;
  }
  const Pass& pass = passes_[pass_index];
  if (pass.ids.empty()) return split(pass_index + 1, text, emit);
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    std::size_t matched = 0;
    if (pass.starts[first]) {
      for (const std::size_t length : pass.lengths[first]) {
        const auto found = pass.ids.find(text.substr(at, length));
        if (found == pass.ids.end()) continue;
        matched = found->first.size();
        split(pass_index + 1, text.substr(done, at - done), emit);
        emit(found->second, text.substr(at, matched));
        break;
      }
    }
    at += std::max<std::size_t>(matched, 1);
    if (matched > 0) done = at;
  }
  split(pass_index + 1, text.substr(done), emit);
}

}  // namespace llmtrain::data
