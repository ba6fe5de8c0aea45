// Which products are quantized, what says so, and what is refused with its reason.
#include "lib/param/layer_precision.hpp"

#include <doctest/doctest.h>

#include "lib/base/refused_key.hpp"

using namespace llmtrain;

namespace {

using Names = std::vector<std::string>;

/// Four blocks, the last but one of experts.
struct Model {
  Mesh mesh{{}, 0, self_factory()};
  ParameterStore store{mesh};

  explicit Model(bool tied = false) {
    declare("model.embed_tokens.weight", ParameterRole::embedding);
    declare("model.embed_positions.weight", ParameterRole::embedding);
    for (const int block : {0, 1, 2, 3}) {
      const std::string name = "model.layers." + std::to_string(block);
      store.declare(
          {linear(name + ".self_attn.q_proj.weight"), linear(name + ".self_attn.k_proj.weight")});
      declare(name + ".norm.weight", ParameterRole::norm);
      if (block == 2) {
        declare(name + ".mlp.gate.weight", ParameterRole::matrix);
        ParameterSpec experts{
            .name = name + ".mlp.experts.down_proj.weight", .shape = {2, 4, 4}, .init = {}};
        experts.placement.of_experts = true;
        store.declare(std::move(experts));
        store.declare(linear(name + ".mlp.shared_experts.down_proj.weight"));
      } else {
        store.declare(linear(name + ".mlp.down_proj.weight"));
      }
    }
    if (!tied) declare("lm_head.weight", ParameterRole::head);
  }

  static ParameterSpec linear(const std::string& name) {
    return {.name = name, .shape = {4, 4}, .init = {}, .linear = true};
  }
  void declare(const std::string& name, ParameterRole role) {
    store.declare({.name = name, .shape = {4, 4}, .role = role, .init = {}});
  }
  std::vector<LayerPrecision> layers(const Names& include, const Names& exclude) const {
    return layer_precisions(store, include, exclude);
  }
};

/// "name: why" of those that are quantized, or of the others.
Names texts(const std::vector<LayerPrecision>& layers, bool quantized) {
  Names all;
  for (const LayerPrecision& layer : layers) {
    if (layer.is_quantized == quantized) all.push_back(layer.name + ": " + layer.why);
  }
  return all;
}

/// The problem that is found with a pattern in `include` and, the same, in `exclude`.
std::string refused(const Model& model, const std::string& pattern) {
  std::string problem;
  for (const bool includes : {true, false}) {
    try {
      model.layers(includes ? Names{pattern} : Names{}, includes ? Names{} : Names{pattern});
      FAIL_CHECK("not refused: " << pattern);
    } catch (const RefusedKey& refusal) {
      CHECK(refusal.key() == (includes ? "precision.fp8.include" : "precision.fp8.exclude"));
      CHECK(refusal.remedy() ==
            "write a pattern of names like model.layers.0.self_attn.q_proj.weight");
      if (!includes) CHECK(refusal.problem() == problem);
      problem = refusal.problem();
    }
  }
  return problem;
}

}  // namespace

TEST_CASE("inner linear layers are quantized, and each other product has its reason") {
  const std::vector<LayerPrecision> layers = Model().layers({}, {});
  CHECK(texts(layers, true) ==
        Names{"model.layers.1.self_attn.q_proj.weight: inner block",
              "model.layers.1.mlp.down_proj.weight: inner block",
              "model.layers.2.self_attn.q_proj.weight: inner block",
              "model.layers.2.mlp.shared_experts.down_proj.weight: inner block"});
  CHECK(texts(layers, false) == Names{"model.layers.0.self_attn.q_proj.weight: first block",
                                      "model.layers.0.mlp.down_proj.weight: first block",
                                      "model.layers.2.mlp.gate.weight: router",
                                      "model.layers.2.mlp.experts.down_proj.weight: experts",
                                      "model.layers.3.self_attn.q_proj.weight: last block",
                                      "model.layers.3.mlp.down_proj.weight: last block",
                                      "lm_head.weight: head"});
  CHECK(summary_of(layers) ==
        "4 of 8 linear layers; bf16: first block (2: model.layers.0.self_attn.q_proj.weight ...), "
        "router (model.layers.2.mlp.gate.weight), "
        "experts (model.layers.2.mlp.experts.down_proj.weight), "
        "last block (2: model.layers.3.self_attn.q_proj.weight ...), head (lm_head.weight)");
}

TEST_CASE("patterns add linear layers and take them away, which counts more") {
  const std::vector<LayerPrecision> layers =
      Model(true).layers({"*.layers.3.*k_proj*", "*.1.*"}, {"*down_proj*"});
  CHECK(texts(layers, true) ==
        Names{"model.layers.1.self_attn.q_proj.weight: inner block",
              "model.layers.2.self_attn.q_proj.weight: inner block",
              "model.layers.3.self_attn.q_proj.weight: precision.fp8.include"});
  const Names high = texts(layers, false);
  CHECK(high.front() == "model.embed_tokens.weight: head");  // tied
  CHECK(high[3] == "model.layers.1.mlp.down_proj.weight: precision.fp8.exclude");
  CHECK(high.back() == "model.layers.3.mlp.down_proj.weight: last block");
  CHECK(summary_of(Model().layers({"*"}, {})).starts_with("8 of 8 linear layers; bf16: router ("));
}

TEST_CASE("a pattern that selects no linear layer is told what it selects, and why that stays") {
  const Model model;
  CHECK(refused(model, "*.no_such.*") == "`*.no_such.*` selects no linear layer");
  CHECK(refused(model, "lm_head*") ==
        "`lm_head*` selects no linear layer: lm_head.weight is the head, whose product the loss "
        "makes in chunks without codes");
  CHECK(refused(model, "*.mlp.gate.*") ==
        "`*.mlp.gate.*` selects no linear layer: model.layers.2.mlp.gate.weight is a router, whose "
        "fp32 logits say which experts a token goes to");
  CHECK(refused(model, "*.mlp.experts.*")
            .ends_with("is of experts, whose products of groups of rows take no codes"));
  CHECK(refused(model, "*embed_tokens*")
            .ends_with("is an embedding, which is looked up, not "
                       "multiplied"));
  CHECK(refused(model, "*norm*").ends_with("is a norm or a bias, which has no product"));
  CHECK(refused(Model(true), "*embed_tokens*")
            .ends_with("is embedding and head: the one is looked up, the other's product the loss "
                       "makes in chunks "
                       "without codes"));
}
