#pragma once
/// A merged YAML tree into the values of a Section.

#include "lib/recipe/issue.hpp"
#include "lib/recipe/load.hpp"
#include "lib/recipe/node.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

/// Resets `root` to its defaults, takes what `tree` (a mapping or nothing) gives, and adds an issue
/// for every key that is unknown, refused or missing and for every broken rule over several keys.
/// Afterwards no key counts as read. With `complete` false (an included file could not be read)
/// nothing is said about missing keys and rules over several keys.
void fill(Section& root, const Node& tree, bool complete, const LoadRequest& request,
          Issues& issues);

/// check_rules() of load.hpp.
void judge_rules(Section& root, Issues& issues);

}  // namespace llmtrain::recipe
