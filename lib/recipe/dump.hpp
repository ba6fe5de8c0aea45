#pragma once
/// The resolved recipe as YAML.

#include <string>

#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

enum class DumpKeys {
  all,      ///< every key, defaults too
  minimal,  ///< what differs from the defaults, and required keys
};

/// YAML that loads to the same values; every key is followed by a comment that says where its value
/// came from.
std::string dump(const Section& root, DumpKeys keys = DumpKeys::all);

}  // namespace llmtrain::recipe
