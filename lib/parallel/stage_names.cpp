#include "lib/parallel/stage_names.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace llmtrain::parallel {

namespace {

/// Layers in the model's order: embed_tokens, the blocks, norm, lm_head.
struct Range {
  std::int64_t first = 0, last = 0;
};

std::string name_of(std::int64_t layer, std::int64_t num_blocks) {
  if (layer == 0) return "embed_tokens";
  if (layer > num_blocks) return layer == num_blocks + 1 ? "norm" : "lm_head";
  return fmt::format("layers.{}", layer - 1);
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kBetween = " ,";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kBetween);
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// The number at the text's beginning, which it loses.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// Nothing for a name that no layer of the model has.
std::optional<Range> range_of(std::string_view word, std::int64_t num_blocks) {
  take(word, "model.");
  for (const std::int64_t layer : {std::int64_t{0}, num_blocks + 1, num_blocks + 2}) {
    if (word == name_of(layer, num_blocks)) return Range{layer, layer};
  }
  if (!take(word, "layers.")) return std::nullopt;
  const auto first = take_number(word);
  const auto last = take(word, "-") ? take_number(word) : first;
  if (!first || !last || !word.empty() || *first > *last || *last >= num_blocks) {
    return std::nullopt;
  }
  return Range{*first + 1, *last + 1};
}

struct Named {
  std::int64_t layer = 0;
  std::size_t stage = 0;
};
using Placement = std::vector<Named>;  // in the order in which they are named

std::optional<NamesMistake> order_mistake(const Placement& named, std::int64_t num_blocks) {
  for (std::size_t i = 1; i < named.size(); ++i) {
    if (named[i].layer > named[i - 1].layer) continue;
    return NamesMistake{
        fmt::format("{} on stage {} comes behind {}", name_of(named[i].layer, num_blocks),
                    named[i].stage, name_of(named[i - 1].layer, num_blocks)),
        "name layers in the model's order"};
  }
  return std::nullopt;
}

/// Of layers that have not one stage, or one that they cannot have.
std::optional<NamesMistake> place_mistake(Placement named, std::int64_t num_blocks,
                                          std::size_t last) {
  std::ranges::stable_sort(named, {}, &Named::layer);
  auto next = named.begin();
  for (std::int64_t layer = 0; layer < num_blocks + 3; ++layer, ++next) {
    const std::string name = name_of(layer, num_blocks);
    if (next != named.begin() && next != named.end() && next->layer < layer) {
      return NamesMistake{
          fmt::format("{} is on stage {} and on stage {}", name_of(next->layer, num_blocks),
                      std::prev(next)->stage, next->stage),
          "name every layer of the model once"};
    }
    if (next == named.end() || next->layer > layer) {
      return NamesMistake{fmt::format("no stage has {}", name),
                          "name every layer of the model once"};
    }
    if (layer == 0 && next->stage != 0) {
      return NamesMistake{
          fmt::format("{} is on stage {}, and only the first one can embed", name, next->stage),
          "name it on stage 0"};
    }
    if (layer > num_blocks && next->stage != last) {
      return NamesMistake{
          fmt::format("{} is on stage {}, and only the last one can have it", name, next->stage),
          fmt::format("name norm and lm_head on stage {}", last)};
    }
  }
  if (next == named.end()) return std::nullopt;
  return NamesMistake{
      fmt::format("lm_head is on stage {} and on stage {}", std::prev(next)->stage, next->stage),
      "name every layer of the model once"};
}

}  // namespace

std::variant<std::vector<std::int64_t>, NamesMistake> blocks_of_names(
    std::span<const std::string> stages, std::int64_t num_blocks) {
  Placement named;
  std::vector<std::int64_t> blocks(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const std::string_view word : words_of(stages[s])) {
      const auto range = range_of(word, num_blocks);
      if (!range) {
        return NamesMistake{
            fmt::format("\"{}\" on stage {} is no layer of the model", word, s),
            fmt::format("its layers are embed_tokens, layers.0-{}, norm, lm_head", num_blocks - 1)};
      }
      if (std::ssize(named) > num_blocks + 3) break;  // one is named twice
      for (std::int64_t layer = range->first; layer <= range->last; ++layer) {
        named.push_back({layer, s});
        blocks[s] += layer > 0 && layer <= num_blocks;
      }
    }
  }
  if (auto mistake = place_mistake(named, num_blocks, stages.size() - 1)) return *mistake;
  if (auto mistake = order_mistake(named, num_blocks)) return *mistake;
  return blocks;
}

}  // namespace llmtrain::parallel
