#pragma once
/// What a user types, as a shell reads it.

#include <string>

#include "apps/llmtrain/commands.hpp"

namespace llmtrain::app {

/// Recipe and overrides as one would type them.
std::string shell_words(const RecipeArguments& arguments);

}  // namespace llmtrain::app
