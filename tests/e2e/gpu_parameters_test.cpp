// offload.parameters: host keeps what products read in pinned memory of a GPU's host, and copies it
// up for each unit of the model: the same runs on an emulated GPU, bit for bit.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

const Overrides kCopies{"offload={optimizer: host, parameters: host, buffer: 96KiB}"};
const Overrides kAll{"offload={optimizer: host, master: host, parameters: host, buffer: 96KiB}"};

void check_same(const Overrides& settings, const Overrides& offload) {
  check_same_on_gpu(settings, offload,
                    {"launches are made one by one in micro-batches, beside which parameters come",
                     "of parameters came to the device for its products"});
}

}  // namespace

TEST_CASE("a GPU's run has the bits that it has with its parameters in its memory" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides bf16{"precision.compute=bf16"};
  check_same(bf16, kAll);
  check_same(bf16, kCopies);
  check_same({"optimizer={name: sgd, lr: 0.1}", "model.tie_word_embeddings=true"}, kCopies);
  check_same({"precision.compute=fp16", "precision.initial_loss_scale=4Gi",
              "training.global_batch_size=8"},
             kAll);
  check_same({"precision={compute: bf16, master: bf16+remainder}", "optimizer.max_grad_norm=0.01",
              "activation_checkpoint.mode=full"},
             kAll);
  check_same({"precision={compute: bf16, master: none}", "eval={interval: 2, max_samples: 8}"},
             kCopies);
  check_same({"precision={compute: fp8, fp8: {scaling: delayed, include: ['*']}}"}, kAll);
  check_same({"precision.compute=bf16", "checkpoint.async=true", "resilience.checksum_every=1",
              "checkpoint.interval=2"},
             kAll);
  check_same({"model={architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
              "num_attention_heads: 2, max_position_embeddings: 64, resid_pdrop: 0.1}"},
             kCopies);
}

TEST_CASE("a GPU's parameters that come as early as may be are too early for no product" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Variable copies("LLMTRAIN_FAKE_COPIES", "early");
  check_same({"precision.compute=bf16", "model.num_hidden_layers=4"}, kAll);
}

TEST_CASE("the plan has a GPU's parameters of two units, and what its host has of them" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const auto of = [&](int layers, const Overrides& offload) {
    return plan_of(
        here,
        on_gpu(joined({"precision.compute=bf16", fmt::format("model.num_hidden_layers={}", layers)},
                      offload)));
  };
  const auto held = [](const Json& plan, const char* category) {
    return plan["held_bytes"][category].get<std::int64_t>();
  };
  const auto peak = [](const Json& plan) {
    return plan["step"]["category_bytes"]["params"].get<std::int64_t>();
  };
  const Json plain = of(12, {}), all = of(12, kAll);
  const auto parameters = plain["parameters"].get<std::int64_t>();
  CHECK(held(all, "params") < held(plain, "params") / 20);  // RoPE's tables
  CHECK(held(all, "master") == 0);
  CHECK(held(all, "grads") == held(plain, "grads"));
  CHECK(peak(all) < peak(plain) / 2);
  CHECK(peak(of(24, kAll)) == peak(all));
  CHECK(all["checkpoint_bytes"] == plain["checkpoint_bytes"]);
  const Json& host = all["host_updates"];
  CHECK(host["contents"] == "optimizer states, masters and parameters");
  CHECK(host["memory_bytes"] > 12 * parameters);
  CHECK(host["pinned_parameter_bytes"] >= 2 * parameters);
  CHECK(host["pinned_bytes"].get<std::int64_t>() -
            host["pinned_parameter_bytes"].get<std::int64_t>() <=
        96 << 10);
  CHECK(host["step_down_bytes"] == 4 * parameters);
  CHECK(host["step_up_bytes"] == 0);
  // Two micro-batches; the look-up's table and the head's weight come once, forth.
  CHECK(host["step_parameter_bytes"] > 2 * 3 * parameters);
  CHECK(host["step_parameter_bytes"] < 2 * 4 * parameters);
  const Json states = of(12, {"offload={optimizer: host, buffer: 96KiB}"});
  CHECK_FALSE(states["host_updates"].contains("pinned_parameter_bytes"));
  const auto text =
      here.call(joined({"plan", "recipe.yaml"}, on_gpu(joined({"precision.compute=bf16"}, kAll))));
  CHECK(holds(text.output, {"optimizer states, masters and parameters: ",
                            "of parameters for its products", "pinned memory, parameters",
                            "one by one in micro-batches, beside which parameters come"}));
}

TEST_CASE("what was saved with a GPU's parameters on its host goes on without, and back" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_goes_on({"precision={compute: bf16, master: bf16+remainder}"},
                {{kAll, {}}, {{}, kAll}, {joined(kAll, {"checkpoint.async=true"}), kCopies}});
}

TEST_CASE("a GPU's way back in place writes parameters on its host" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_way_back_in_place(kCopies);
}

TEST_CASE("parameters that cannot be on the host are refused when the recipe is checked") {
  const auto check_refused = [](const Overrides& overrides, const std::string& says) {
    CAPTURE(says);
    const Workspace here(kTinyRecipe);
    const auto result = here.call(joined({"check", "recipe.yaml"}, overrides));
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(result.output.find(says) != std::string::npos, result.output);
  };
  const Overrides on_gpu{"run.device=cuda"};
  check_refused(joined(on_gpu, {"offload.parameters=host"}),
                "offload.parameters=host: does nothing without offload.optimizer: host, whose "
                "updates have parameters there");
  check_refused(joined(on_gpu, {"offload={optimizer: host, parameters: nvme}"}),
                "does nothing without offload.optimizer: nvme");
  check_refused(joined(on_gpu, joined(kCopies, {"metrics.diagnostics_interval=2"})),
                "looks at all parameters behind a step");
  check_refused(kCopies, "the memory of a CPU is the host's");
}

}  // namespace llmtrain
