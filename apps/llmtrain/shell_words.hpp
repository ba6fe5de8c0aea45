#pragma once
/// What a user types, as a shell reads it.

#include <string>

#include "apps/llmtrain/commands.hpp"

namespace llmtrain::app {

/// The word, in quotes where it needs them.
std::string shell_word(const std::string& word);
/// Recipe and overrides as one would type them.
std::string shell_words(const RecipeArguments& arguments);

}  // namespace llmtrain::app
