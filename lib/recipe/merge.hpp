#pragma once
/// Combining YAML trees: files with what they include, and overrides.

#include <string>

#include "lib/recipe/issue.hpp"
#include "lib/recipe/node.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

/// Puts `top` over `base`: mappings merge key by key, everything else replaces.
void merge(Node& base, Node top);

/// Applies `a.b=value` or `~a.b` to the tree of the whole recipe; `order` places its issues.
/// `schema` is asked whether a key that is not there to unset exists at all.
void apply_override(Node& root, const std::string& argument, int order, const Section& schema,
                    Issues& issues);

}  // namespace llmtrain::recipe
