#pragma once
/// "Did you mean": the nearest of several names.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::recipe {

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment), at most `limit` + 1. Letter case and `-` for `_` do not count.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

/// The name nearest to `word` if it is near enough to be meant, otherwise empty.
std::string_view nearest(std::string_view word, std::span<const std::string> names);

/// "did you mean `x`?; allowed: a, b, c", as far as it helps.
std::string suggestion(std::string_view word, std::span<const std::string> names);

}  // namespace llmtrain::recipe
