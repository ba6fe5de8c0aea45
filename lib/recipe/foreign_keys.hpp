#pragma once
/// Keys of other training tools, so that an error can name ours.

#include <span>
#include <string_view>

namespace llmtrain::recipe {

struct ForeignKey {
  std::string_view name;  ///< last part of the other tool's key
  std::string_view ours;  ///< path of our key; empty if there is none
  std::string_view note;  ///< what else to know; may be empty
};

/// The table; names are unique.
std::span<const ForeignKey> foreign_keys();

}  // namespace llmtrain::recipe
