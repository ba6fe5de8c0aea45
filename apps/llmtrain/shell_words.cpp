#include "apps/llmtrain/shell_words.hpp"

#include "lib/base/shell_word.hpp"

namespace llmtrain::app {

std::string shell_words(const RecipeArguments& arguments) {
  std::string line = shell_word(arguments.recipe.string());
  for (const std::string& word : arguments.overrides) {
    line += ' ';
    line += shell_word(word);
  }
  return line;
}

}  // namespace llmtrain::app
