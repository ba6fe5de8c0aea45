#include "lib/data/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"
#include "lib/data/json_field.hpp"
#include "lib/data/regex.hpp"
#include "lib/data/unicode.hpp"

namespace llmtrain::data {

namespace {

unsigned first_two(std::string_view text) {
  return static_cast<unsigned>(static_cast<unsigned char>(text[0])) << 8 |
         static_cast<unsigned char>(text[1]);
}

bool ends_with_word(std::string_view text) {
  const std::string_view last = last_character(text);
  return !last.empty() && is_word_character(decode_utf8(last));
}

bool starts_with_word(std::string_view text) {
  return utf8_char_length(text) > 0 && is_word_character(decode_utf8(text));
}

}  // namespace

AddedTokenSplitter::AddedTokenSplitter(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  for (const AddedToken& token : tokens_) {
    require<DataError>(!token.content.empty(), "added token {} is empty; {}", token.id, kSaveAgain);
    require<DataError>(by_content_.emplace(token.content, &token).second,
                       "added token '{}' is there twice; {}", token.content, kSaveAgain);
    const auto first = static_cast<unsigned char>(token.content[0]);
    if (token.content.size() == 1) {
      single_.set(first);
    } else {
      starts_.set(first_two(token.content));
    }
    auto& lengths = lengths_[first];
    if (std::find(lengths.begin(), lengths.end(), token.content.size()) == lengths.end()) {
      lengths.push_back(token.content.size());
    }
  }
  for (auto& lengths : lengths_) std::sort(lengths.rbegin(), lengths.rend());
}

const AddedToken* AddedTokenSplitter::longest_at(std::string_view text) const {
  const auto first = static_cast<unsigned char>(text[0]);
  if (!single_[first] && (text.size() < 2 || !starts_[first_two(text)])) return nullptr;
  for (const std::size_t length : lengths_[first]) {
    const auto found = by_content_.find(text.substr(0, length));
    if (found != by_content_.end()) return found->second;
  }
  return nullptr;
}

void AddedTokenSplitter::split(std::string_view text, const Emit& emit) const {
  std::size_t done = 0;
  if (!tokens_.empty()) {
    for (std::size_t at = 0; at < text.size();) {
      const AddedToken* token = longest_at(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      std::size_t end = at + token->content.size();
      // The search goes on behind the text itself, whatever white space the token takes.
      at = end;
      if (token->single_word &&
          (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
        continue;
      }
      if (token->lstrip) {
        begin = std::max(begin - trailing_white_space(text.substr(0, begin)), done);
      }
      if (token->rstrip) end += leading_white_space(text.substr(end));
      if (done < begin) emit(kText, text.substr(done, begin - done));
      emit(token->id, text.substr(at - token->content.size(), token->content.size()));
      done = end;
    }
  }
  if (done < text.size()) emit(kText, text.substr(done));
}

}  // namespace llmtrain::data
