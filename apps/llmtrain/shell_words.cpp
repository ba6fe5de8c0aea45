#include "apps/llmtrain/shell_words.hpp"

namespace llmtrain::app {

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,+-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  quoted += '\'';
  return quoted;
}

std::string shell_words(const RecipeArguments& arguments) {
  std::string line = shell_word(arguments.recipe.string());
  for (const std::string& word : arguments.overrides) {
    line += ' ';
    line += shell_word(word);
  }
  return line;
}

}  // namespace llmtrain::app
