#include "lib/recipe/suggest.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace llmtrain::recipe {

namespace {

// Longer words are no misspelt names, and the table below would grow with their product.
constexpr std::size_t kLongestWord = 64;

char fold(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (gap > limit || a.size() > kLongestWord || b.size() > kLongestWord) return limit + 1;
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = fold(a[i - 1]) == fold(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(last[b.size()], limit + 1);
}

std::string_view nearest(std::string_view word, std::span<const std::string> names) {
  // A third of the letters may be wrong, in a word of one or two none but its case.
  std::size_t limit = word.size() < 3 ? 0 : std::max<std::size_t>(1, word.size() / 3);
  std::string_view best;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name, limit);
    if (distance > limit || (distance == limit && !best.empty())) continue;
    best = name;
    limit = distance;
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string> names) {
  constexpr std::size_t kShown = 24;
  const std::string_view near = nearest(word, names);
  std::string text = near.empty() ? "" : fmt::format("did you mean `{}`?", near);
  if (names.empty() || (!near.empty() && names.size() > kShown / 2)) return text;
  text += text.empty() ? "allowed: " : "; allowed: ";
  text += fmt::format("{}", fmt::join(names.first(std::min(kShown, names.size())), ", "));
  return names.size() > kShown ? text + ", ..." : text;
}

}  // namespace llmtrain::recipe
