// Keys of experts as DeepSeek-V3 has them, in recipes and in config.json.
#include <doctest/doctest.h>

#include "lib/models/architecture.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::models {

namespace {

struct ModelRecipe : recipe::Section {
  recipe::Sub<ModelSection> model{this, "model", "model"};
};

DecoderSpec of_recipe(const std::string& keys) {
  ModelRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = "recipe: 1\nmodel: {architecture: dots1, vocab_size: 61, "
                                "hidden_size: 24, intermediate_size: 40, num_hidden_layers: 3, "
                                "num_attention_heads: 4, max_position_embeddings: 16, " +
                                keys + "}\n"});
  return recipe.model.spec();
}

DecoderSpec of_config(const std::string& keys) {
  return spec_from_hf_config(
      R"({"model_type": "dots1", "num_hidden_layers": 6, "num_experts_per_tok": 4, )" + keys + "}",
      "test");
}

constexpr const char* kExperts = R"("n_routed_experts": 12, "n_shared_experts": 2, )";

}  // namespace

TEST_CASE("a recipe says all that the family's blocks have") {
  const DecoderSpec spec = of_recipe(
      "n_routed_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 10, "
      "n_shared_experts: 3, first_k_dense_replace: 2, n_group: 4, topk_group: 2, "
      "norm_topk_prob: false, routed_scaling_factor: 1.5, bias_update_speed: 0.001");
  CHECK(spec.qk_norm);
  CHECK_FALSE(spec.has_experts(1));
  CHECK(spec.has_experts(2));
  const ExpertsSpec& experts = spec.experts;
  CHECK(experts.num_experts == 8);
  CHECK(experts.num_shared == 3);
  CHECK(experts.intermediate_size == 10);
  CHECK(experts.correction_bias);
  CHECK(experts.bias_update_speed == 0.001);
  CHECK(experts.rule.scores == kernels::RouterScores::sigmoid);
  CHECK(experts.rule.top_k == 3);
  CHECK_FALSE(experts.rule.normalize);
  CHECK(experts.rule.scale == 1.5);
  CHECK(experts.rule.groups == 4);
  CHECK(experts.rule.kept_groups == 2);
}

TEST_CASE("a recipe's experts that cannot be, or keys that do nothing, are refused by name") {
  for (const auto& [keys, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"first_k_dense_replace: 3", "model.first_k_dense_replace: no block has experts"},
           {"n_routed_experts: 4, num_experts_per_tok: 5", "model.num_experts_per_tok: more than"},
           {"n_group: 2, topk_group: 3", "model.topk_group: more than the 2 groups"},
           {"n_group: 4, topk_group: 4", "model.n_group: does nothing"},
           {"n_routed_experts: 10, n_group: 4", "do not divide 10 experts"},
           {"n_routed_experts: 6, num_experts_per_tok: 2, n_group: 6, topk_group: 3",
            "6 groups do not divide 6 experts into groups of two or more"},
           {"n_routed_experts: 12, n_group: 6", "1 of 6 groups have fewer than 6 experts"},
           {"n_shared_experts: 0", "model.n_shared_experts"},
           {"bias_update_speed: -1", "model.bias_update_speed"}}) {
    CAPTURE(keys);
    CHECK_THROWS_WITH_AS(of_recipe(keys), doctest::Contains(message), RecipeError);
  }
}

TEST_CASE("config.json has transformers' defaults and is read strictly") {
  const DecoderSpec spec = of_config(std::string(kExperts) + R"("first_k_dense_replace": 2)");
  CHECK(spec.hidden_size == 4608);
  CHECK(spec.vocab_size == 152064);
  CHECK(spec.num_key_value_heads == 32);
  CHECK(spec.norm.eps == 1e-6);
  CHECK(spec.num_expert_layers() == 4);
  CHECK(spec.experts.intermediate_size == 1408);
  CHECK(spec.experts.num_shared == 2);
  CHECK_FALSE(spec.experts.rule.normalize);
  CHECK(spec.experts.rule.scale == 1);
  CHECK(spec.experts.rule.groups == 1);
  CHECK(of_config(std::string(kExperts) + R"("num_key_value_heads": null, )"
                                          R"("num_attention_heads": 16)")
            .num_key_value_heads == 16);
  for (const char* refused :
       {R"("n_routed_experts": 12)", R"("n_shared_experts": 2)",
        R"("n_routed_experts": 3, "n_shared_experts": 2)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "first_k_dense_replace": 6)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "n_group": 5)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "n_group": 2, "topk_group": 3)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "n_group": 6)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "max_window_layers": 3)",
        R"("n_routed_experts": 12, "n_shared_experts": 2, "router_aux_loss_coef": 0.1)"}) {
    CAPTURE(refused);
    CHECK_THROWS_AS(of_config(refused), DataError);
  }
  CHECK_NOTHROW(
      of_config(std::string(kExperts) + R"("scoring_func": "noaux_tc", "moe_layer_freq": 1)"));
  CHECK_THROWS_AS(of_config(std::string(kExperts) + R"("scoring_func": "softmax")"), DataError);
  // Without a window no layer has one.
  CHECK_NOTHROW(
      of_config(std::string(kExperts) + R"("max_window_layers": 3, "sliding_window": null)"));
}

TEST_CASE("routers that compute otherwise are another model") {
  const DecoderSpec a = of_config(std::string(kExperts) + R"("n_group": 3, "topk_group": 2)");
  CHECK(computed_difference(a, a).empty());
  DecoderSpec b = a;
  b.experts.rule.scale = 2;
  CHECK(computed_difference(a, b) == "routed_scaling_factor 1 and 2");
  b = a;
  b.experts.rule.groups = b.experts.rule.kept_groups = 1;
  CHECK(computed_difference(a, b) == "groups of experts 2 of 3 and none");
  DecoderSpec c = b;
  c.experts.rule.groups = c.experts.rule.kept_groups = 6;
  CHECK(computed_difference(b, c).empty());
  b = a;
  b.experts.rule.scores = kernels::RouterScores::softmax;
  CHECK(computed_difference(a, b) == "scores of routers sigmoid and softmax");
  b = a;
  b.experts.num_shared = 1;
  CHECK(computed_difference(a, b) == "n_shared_experts 2 and 1");
  b = a;
  b.experts.first = 1;
  CHECK(computed_difference(a, b) == "experts in layer 0 true and false");
  b = a;
  b.experts.correction_bias = false;
  CHECK(computed_difference(a, b) == "correction bias of routers true and false");
}

}  // namespace llmtrain::models
