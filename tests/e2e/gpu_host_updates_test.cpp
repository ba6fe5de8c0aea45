// offload.optimizer: host and offload.master: host, on an emulated GPU: the same runs, bit for bit.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

/// Chunks of 12 KiB: what travels of the tiny model is eight of them and more.
const Overrides kHost{"offload={optimizer: host, buffer: 96KiB}"};
const Overrides kWithMasters{"offload={optimizer: host, master: host, buffer: 96KiB}"};

void check_same(const Overrides& settings, const Overrides& offload) {
  check_same_on_gpu(
      settings, offload,
      {"updates are in no recorded launches: the host computes them", "updates on the host took"});
}

std::int64_t bytes(const Json& plan, const char* category) {
  return plan["held_bytes"][category].get<std::int64_t>();
}

}  // namespace

TEST_CASE("a GPU's run has the bits that it has without when the host updates" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides bf16{"precision.compute=bf16"};
  check_same(bf16, kHost);
  check_same(bf16, kWithMasters);
  check_same({}, kHost);
  check_same({"precision.compute=fp16", "precision.initial_loss_scale=4Gi",
              "training.global_batch_size=8"},
             kWithMasters);
  check_same({"precision={compute: bf16, master: bf16+remainder}", "optimizer.max_grad_norm=0.01",
              "optimizer.max_grad_value=0.001"},
             kWithMasters);
  check_same({"precision={compute: bf16, master: none}"}, kHost);
}

TEST_CASE("the plan of updates on the host is what a run takes, and the GPU's memory is less" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const Overrides bf16 = on_gpu({"precision.compute=bf16"});
  const Json plain = plan_of(here, bf16), states = plan_of(here, joined(bf16, kHost)),
             both = plan_of(here, joined(bf16, kWithMasters));
  const std::int64_t parameters = plain["parameters"].get<std::int64_t>();
  CHECK(bytes(plain, "optimizer") - bytes(states, "optimizer") > 8 * parameters);
  CHECK(bytes(states, "optimizer") <= 1 << 10);  // the decision
  CHECK(bytes(states, "master") == bytes(plain, "master"));
  CHECK(bytes(both, "master") == 0);
  for (const char* category : {"params", "grads", "activations", "workspace", "offload"}) {
    CHECK(bytes(both, category) == bytes(plain, category));
  }
  CHECK(both["checkpoint_bytes"] == plain["checkpoint_bytes"]);
  const Json& host = both["host_updates"];
  CHECK(host["contents"] == "optimizer states and masters");
  CHECK(host["memory_bytes"] > 12 * parameters);
  CHECK(host["pinned_bytes"] <= 96 << 10);
  CHECK(host["step_down_bytes"] == 4 * parameters);
  CHECK(host["step_up_bytes"] == 2 * parameters);
  CHECK(states["host_updates"]["step_down_bytes"] == 8 * parameters);
  CHECK(states["host_updates"]["step_up_bytes"] == 6 * parameters);
  CHECK(plain.find("host_updates") == plain.end());
  const auto text = here.call(joined({"plan", "recipe.yaml"}, joined(bf16, kWithMasters)));
  CHECK(holds(text.output, {"optimizer states and masters: ", "in the host's memory; a step brings",
                            "pinned memory for updates", "updates are the host's"}));
}

TEST_CASE("what was saved with updates on the host goes on without, and the other way round" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_goes_on({"precision.compute=bf16"},
                {{kWithMasters, {}},
                 {{}, kWithMasters},
                 {joined(kWithMasters, {"checkpoint.async=true"}), kHost}});
}

}  // namespace llmtrain
