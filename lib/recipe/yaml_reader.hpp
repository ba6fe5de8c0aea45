#pragma once
/// YAML text to a Node tree, with everything refused that a recipe has no need for.

#include <cstddef>
#include <memory>
#include <string_view>

#include "lib/recipe/issue.hpp"
#include "lib/recipe/node.hpp"

namespace llmtrain::recipe {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 64;

/// Reads one YAML document (Kind::null if there is none). Refused, with a position: more than
/// kMaxFileBytes, nesting deeper than kMaxDepth, text that is not UTF-8 or holds control
/// characters, tabs as indentation, anchors, aliases, tags, merge keys, duplicate keys, keys that
/// are not text, a second document, and what is no YAML. False if the tree is unusable; duplicate
/// and merge keys leave a usable tree without them.
bool read_yaml(std::string_view text, const std::shared_ptr<const Source>& source, Node& out,
               Issues& issues);

}  // namespace llmtrain::recipe
