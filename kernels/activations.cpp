#include "kernels/activations.hpp"

#include <array>

namespace llmtrain::kernels {

namespace {

// Per activation its names, separated by blanks.
constexpr std::array<std::string_view, kNumActivations> kNames{
#define ACTIVATION(id, names, ...) names,
#include "kernels/activation_table.inc"
#undef ACTIVATION
};

/// Takes the first word off `words`.
std::string_view next_word(std::string_view& words) {
  const std::size_t end = std::min(words.find(' '), words.size());
  const std::string_view word = words.substr(0, end);
  words.remove_prefix(std::min(end + 1, words.size()));
  return word;
}

}  // namespace

std::string_view to_string(Activation activation) {
  std::string_view names = kNames[static_cast<std::size_t>(activation)];
  return next_word(names);
}

std::optional<Activation> parse_activation(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    for (std::string_view names = kNames[i]; !names.empty();) {
      if (next_word(names) == name) return static_cast<Activation>(i);
    }
  }
  return std::nullopt;
}

std::vector<std::string_view> activation_names() {
  std::vector<std::string_view> all;
  for (std::string_view names : kNames) {
    while (!names.empty()) all.push_back(next_word(names));
  }
  return all;
}

}  // namespace llmtrain::kernels
