#include "lib/param/layer_precision.hpp"

#include <algorithm>
#include <charconv>
#include <fnmatch.h>
#include <optional>

#include <fmt/format.h>

#include "lib/base/refused_key.hpp"

namespace llmtrain {

namespace {

// What a weight is that belongs to no linear layer.
struct OtherWeight {
  std::string_view why;  // of its product's precision; empty: it has none
  std::string_view what;
};

constexpr OtherWeight kHead{"head",
                            "the head, whose product the loss makes in chunks without codes"};
constexpr OtherWeight kTiedHead{"head",
                                "embedding and head: the one is looked up, the other's "
                                "product the loss makes in chunks without codes"};
constexpr OtherWeight kRouter{"router",
                              "a router, whose fp32 logits say which experts a token goes to"};
constexpr OtherWeight kExperts{"experts",
                               "of experts, whose products of groups of rows take no codes"};
constexpr OtherWeight kEmbedding{"", "an embedding, which is looked up, not multiplied"};
constexpr OtherWeight kNoProduct{"", "a norm or a bias, which has no product"};

// `tied`: the embedding that is the head as well, or null.
const OtherWeight& kind_of(const Parameter& weight, const Parameter* tied) {
  if (&weight == tied) return kTiedHead;
  switch (weight.role()) {
    case ParameterRole::head:
      return kHead;
    case ParameterRole::embedding:
      return kEmbedding;
    case ParameterRole::norm:
    case ParameterRole::bias:
      return kNoProduct;
    case ParameterRole::matrix:
      break;
  }
  return weight.placement().of_experts ? kExperts : kRouter;
}

// A model without a head of its own has its embedding of tokens, the first one, as that.
const Parameter* tied_embedding(const ParameterStore& store) {
  const Parameter* first = nullptr;
  for (const auto& p : store.all()) {
    if (p->role() == ParameterRole::head) return nullptr;
    if (p->role() == ParameterRole::embedding && first == nullptr) first = p.get();
  }
  return first;
}

bool matches(const Parameter& parameter, const std::string& pattern) {
  return fnmatch(pattern.c_str(), parameter.name().c_str(), 0) == 0;
}

bool matches_any(const ParameterGroup& group, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return std::ranges::any_of(group.members(),
                               [&](const Parameter* p) { return matches(*p, pattern); });
  });
}

// N of model.layers.N.*, or none.
std::optional<std::int64_t> block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t block = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  return error == std::errc() ? std::optional(block) : std::nullopt;
}

void check_patterns(const ParameterStore& store, std::string_view key,
                    const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const Parameter *other = nullptr, *example = nullptr;
    bool selects = false;
    for (const auto& p : store.all()) {
      if (p->is_linear() && example == nullptr) example = p.get();
      if (!matches(*p, pattern)) continue;
      selects = selects || p->is_linear();
      if (other == nullptr) other = p.get();
    }
    if (selects) continue;
    std::string problem = fmt::format("`{}` selects no linear layer", pattern);
    if (other != nullptr) {
      problem +=
          fmt::format(": {} is {}", other->name(), kind_of(*other, tied_embedding(store)).what);
    }
    throw RefusedKey(fmt::format("precision.fp8.{}", key), problem,
                     fmt::format("write a pattern of names like {}",
                                 example == nullptr ? "*.down_proj.weight" : example->name()));
  }
}

}  // namespace

std::vector<LayerPrecision> layer_precisions(const ParameterStore& store,
                                             const std::vector<std::string>& include,
                                             const std::vector<std::string>& exclude) {
  check_patterns(store, "include", include);
  check_patterns(store, "exclude", exclude);
  std::int64_t last = 0;
  for (const auto& p : store.all()) {
    if (p->is_linear()) last = std::max(last, block_of(p->name()).value_or(0));
  }
  const Parameter* tied = tied_embedding(store);
  std::vector<LayerPrecision> layers;
  for (const auto& group : store.groups()) {
    const Parameter& weight = *group->members().front();
    LayerPrecision layer{.name = weight.name(), .why = ""};
    if (!weight.is_linear()) {
      layer.is_linear = false;
      layer.why = kind_of(weight, tied).why;
      if (!layer.why.empty()) layers.push_back(std::move(layer));
      continue;
    }
    const std::int64_t block = block_of(weight.name()).value_or(0);
    const bool inner = block > 0 && block < last;
    layer.is_quantized = inner || matches_any(*group, include);
    layer.why = inner                ? "inner block"
                : layer.is_quantized ? "precision.fp8.include"
                : block == 0         ? "first block"
                                     : "last block";
    if (layer.is_quantized && matches_any(*group, exclude)) {
      layer.is_quantized = false;
      layer.why = "precision.fp8.exclude";
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::string summary_of(std::span<const LayerPrecision> layers) {
  struct Reason {
    const LayerPrecision* first;
    std::int64_t count = 0;
  };
  std::vector<Reason> reasons;
  std::int64_t linear = 0, quantized = 0;
  for (const LayerPrecision& layer : layers) {
    linear += layer.is_linear;
    quantized += layer.is_quantized;
    if (layer.is_quantized) continue;
    auto reason = std::ranges::find_if(
        reasons, [&](const Reason& other) { return other.first->why == layer.why; });
    if (reason == reasons.end()) reason = reasons.insert(reason, Reason{.first = &layer});
    reason->count += 1;
  }
  std::string text = fmt::format("{} of {} linear layers", quantized, linear);
  for (const Reason& reason : reasons) {
    text +=
        fmt::format("{}{} ({}{})", &reason == reasons.data() ? "; bf16: " : ", ", reason.first->why,
                    reason.count == 1 ? "" : fmt::format("{}: ", reason.count),
                    reason.first->name + (reason.count == 1 ? "" : " ..."));
  }
  return text;
}

}  // namespace llmtrain
