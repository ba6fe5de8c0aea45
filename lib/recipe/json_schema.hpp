#pragma once
/// The schema of recipes for editors.

#include <string>
#include <string_view>

#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

/// JSON Schema (draft-07, which editors' YAML servers read) of `root`, as indented text.
std::string json_schema(const Section& root, std::string_view title);

}  // namespace llmtrain::recipe
