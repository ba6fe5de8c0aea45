// Every model family through the whole program: trained, exported, read back.
#include <map>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/models/architecture.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

// What the model needs beside the keys that all have, with something of its own where it has that.
const std::map<std::string_view, std::string_view> kOwnKeys{
    {"gpt2", "embd_pdrop: 0.1"},
    {"llama", "intermediate_size: 32, rope_scaling: {rope_type: llama3, factor: 2}"},
    {"mistral", "intermediate_size: 32, sliding_window: 5"},
    {"qwen2", "intermediate_size: 32, sliding_window: 5, max_window_layers: 1"},
    {"qwen3", "intermediate_size: 32, head_dim: 6, num_key_value_heads: 1"},
    {"gemma2", "intermediate_size: 32, head_dim: 6, sliding_window: 5, query_pre_attn_scalar: 6"},
    {"mpt", "intermediate_size: null, attn_pdrop: 0.1"},
    {"gpt_oss_dense", "intermediate_size: 32, sliding_window: 5"},
    {"mixtral", "intermediate_size: 24, num_local_experts: 4, sliding_window: 5"},
    {"qwen3_moe",
     "intermediate_size: 32, moe_intermediate_size: 24, num_experts: 5, num_experts_per_tok: 3, "
     "mlp_only_layers: [0]"},
    {"dots1",
     "intermediate_size: 32, moe_intermediate_size: 24, n_routed_experts: 6, "
     "num_experts_per_tok: 2, n_shared_experts: 1, n_group: 3, topk_group: 2"},
};

}  // namespace

TEST_CASE("every family trains 50 steps, is exported, and starts another run with its weights") {
  for (const models::Architecture& family : models::architectures()) {
    CAPTURE(family.name);
    REQUIRE(kOwnKeys.contains(family.name));
    const Workspace here(kTinyRecipe);
    const std::string model = fmt::format(
        "model={{architecture: {}, vocab_size: 257, hidden_size: 16, num_hidden_layers: 2, "
        "num_attention_heads: 2, max_position_embeddings: 64, {}}}",
        family.name, kOwnKeys.at(family.name));

    std::vector<std::string> training{model, "training.max_steps=50", "checkpoint.interval=50"};
    // Moves weights whatever the learning rate is, so the run that must not move them goes without.
    if (family.name == "dots1") training.push_back("model.bias_update_speed=0.01");
    const auto trained = here.run(training);
    INFO(trained.output);
    REQUIRE(trained.exit_code == 0);
    std::vector<double> losses;
    for (const train::StepRecord& record : here.metrics()) {
      if (const auto loss = record.number(train::metric::kLoss)) losses.push_back(*loss);
    }
    REQUIRE(losses.size() == 50);
    CHECK(losses.back() < 0.9 * losses.front());

    REQUIRE(here.call({"ckpt", "export", "run", "hf"}).exit_code == 0);
    std::filesystem::remove_all(here.path / "run");
    const auto again = here.run({model, "model.init_from=hf", "optimizer.lr=0",
                                 "training.max_steps=1", "checkpoint.interval=1", "run.seed=77"});
    INFO(again.output);
    REQUIRE(again.exit_code == 0);
    REQUIRE(here.call({"ckpt", "export", "run", "again"}).exit_code == 0);
    for (const char* file : {"model.safetensors", "config.json"}) {
      CHECK(read_file(here.path / "again" / file) == read_file(here.path / "hf" / file));
    }
  }
}

}  // namespace llmtrain
