// offload.optimizer, master and parameters: nvme on an emulated GPU, whose host updates what is in
// its file: the same runs, bit for bit.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

/// Chunks of 12 KiB, or of a whole parameter; the pool has room for less than all.
const Overrides kStates{"offload={optimizer: nvme, buffer: 96KiB}"};
const Overrides kMasters{"offload={optimizer: nvme, master: nvme, buffer: 96KiB}"};
const Overrides kCopies{"offload={optimizer: nvme, parameters: nvme, buffer: 96KiB}"};
const Overrides kAll{"offload={optimizer: nvme, master: nvme, parameters: nvme, buffer: 96KiB}"};

void check_same(const Overrides& settings, const Overrides& offload) {
  check_same_on_gpu(settings, offload,
                    {"in a file, read and written by", "of its memory pinned, for what travels",
                     "updates are in no recorded launches: the host computes them",
                     "updates on the host took", "; updates waited "});
}

void check_same_with_parameters(const Overrides& settings, const Overrides& offload) {
  check_same_on_gpu(settings, offload,
                    {"launches are made one by one in micro-batches, beside which parameters come",
                     "of parameters read besides, for which products waited",
                     "of parameters came to the device for its products"});
}

std::int64_t bytes(const Json& plan, const char* category) {
  return plan["held_bytes"][category].get<std::int64_t>();
}

}  // namespace

TEST_CASE("a GPU's run has the bits that it has without when its host updates what is in a file" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides bf16{"precision.compute=bf16"};
  check_same(bf16, kStates);
  check_same(bf16, kMasters);
  check_same({}, joined(kStates, {"offload.checksum=false"}));
  check_same({"precision.compute=fp16", "precision.initial_loss_scale=4Gi",
              "training.global_batch_size=8"},
             kMasters);
  check_same({"precision={compute: bf16, master: bf16+remainder}", "optimizer.max_grad_norm=0.01",
              "optimizer.max_grad_value=0.001"},
             kMasters);
  check_same({"precision={compute: bf16, master: none}", "optimizer.state_dtype=bf16"}, kStates);
  for (const char* optimizer :
       {"name: adafactor", "name: lion_8bit", "name: came", "name: adam_mini"}) {
    check_same(joined(bf16, {fmt::format("optimizer={{{}}}", optimizer)}), kMasters);
  }
  const Variable threads("LLMTRAIN_IO_URING", "off");
  check_same({"precision.compute=bf16", "optimizer={name: sgd, lr: 0.1}"}, kMasters);
}

TEST_CASE("a GPU's run has the bits that it has without when its parameters are in a file" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_same_with_parameters({"precision.compute=bf16", "checkpoint.async=true",
                              "resilience.checksum_every=1", "checkpoint.interval=2"},
                             kAll);
  check_same_with_parameters({"precision.compute=bf16"}, kCopies);
  check_same_with_parameters({"optimizer={name: sgd, lr: 0.1}", "model.tie_word_embeddings=true"},
                             kCopies);
  check_same_with_parameters({"precision.compute=fp16", "precision.initial_loss_scale=4Gi",
                              "training.global_batch_size=8"},
                             kAll);
  check_same_with_parameters({"precision={compute: bf16, master: bf16+remainder}",
                              "optimizer.max_grad_norm=0.01", "activation_checkpoint.mode=full"},
                             kAll);
  check_same_with_parameters(
      {"precision={compute: bf16, master: none}", "eval={interval: 2, max_samples: 8}"}, kCopies);
  const Variable copies("LLMTRAIN_FAKE_COPIES", "early");
  check_same_with_parameters({"precision.compute=bf16", "model.num_hidden_layers=4"}, kAll);
}

TEST_CASE("the plan of a GPU's files is what a run takes of its host, and of its disk" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const Overrides bf16 = on_gpu({"precision.compute=bf16", "model.num_hidden_layers=12"});
  const Json plain = plan_of(here, bf16), masters = plan_of(here, joined(bf16, kMasters)),
             all = plan_of(here, joined(bf16, kAll));
  const auto parameters = plain["parameters"].get<std::int64_t>();
  CHECK(bytes(plain, "optimizer") - bytes(masters, "optimizer") > 8 * parameters);
  CHECK(bytes(masters, "optimizer") <= 4 << 10);  // the decision, and of the norm
  CHECK(bytes(masters, "master") == 0);
  for (const char* category : {"params", "grads", "activations", "workspace", "offload"}) {
    CHECK(bytes(masters, category) == bytes(plain, category));
  }
  CHECK(bytes(all, "params") < bytes(plain, "params") / 20);  // RoPE's tables
  const auto check_host = [&](const Json& plan, bool has_copies) {
    CHECK(plan["checkpoint_bytes"] == plain["checkpoint_bytes"]);
    const Json &host = plan["host_updates"], &file = plan["offload"];
    CHECK(file["contents"] == (has_copies ? "optimizer states, masters and parameters"
                                          : "optimizer states and masters"));
    CHECK(file["file_bytes"] > (has_copies ? 14 : 12) * parameters);
    CHECK(file["step_written_bytes"] == file["file_bytes"]);
    CHECK_FALSE(host.contains("contents"));
    CHECK_FALSE(host.contains("pinned_parameter_bytes"));
    CHECK(host["memory_bytes"] < 256 << 10);  // the pool, and tables of launches
    CHECK(host["pinned_bytes"] <= 96 << 10);
    CHECK(host["step_down_bytes"] == 4 * parameters);
    CHECK(host["step_up_bytes"] == (has_copies ? 0 : 2) * parameters);
    CHECK(host.contains("step_parameter_bytes") == has_copies);
  };
  check_host(masters, false);
  check_host(all, true);
  CHECK(masters["offload"]["step_read_bytes"] == masters["offload"]["file_bytes"]);
  // Two micro-batches; the look-up's table and the head's weight come once, forth.
  CHECK(all["host_updates"]["step_parameter_bytes"] > 2 * 3 * parameters);
  CHECK(all["host_updates"]["step_parameter_bytes"] < 2 * 4 * parameters);
  CHECK(all["offload"]["step_read_bytes"].get<std::int64_t>() >=
        all["offload"]["file_bytes"].get<std::int64_t>() +
            all["host_updates"]["step_parameter_bytes"].get<std::int64_t>());
  const auto text = here.call(joined({"plan", "recipe.yaml"}, joined(bf16, kAll)));
  CHECK(holds(text.output,
              {"optimizer states, masters and parameters: ", "in a file of this rank; a step reads",
               "updates: the host's, through", "of parameters for its products",
               "pinned memory for updates", "updates are the host's",
               "one by one in micro-batches, beside which parameters come"}));
  CHECK(text.output.find("pinned memory, parameters") == std::string::npos);
}

TEST_CASE("what was saved with a GPU's states in a file goes on without, and the other way round" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides in_memory{"offload={optimizer: host, master: host, buffer: 96KiB}"};
  check_goes_on({"precision.compute=bf16"}, {{kMasters, {}}, {in_memory, kMasters}});
  check_goes_on({"precision={compute: bf16, master: bf16+remainder}"},
                {{joined(kAll, {"checkpoint.async=true"}), kStates}, {{}, kAll}});
}

TEST_CASE("a GPU's way back in place writes into its host's file" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_way_back_in_place(kCopies);
}

TEST_CASE("what of a GPU cannot be in a file is refused when the recipe is checked") {
  const auto check_refused = [](const Overrides& overrides, const std::string& says) {
    CAPTURE(says);
    const Workspace here(kTinyRecipe);
    const auto result = here.call(joined({"check", "recipe.yaml", "run.device=cuda"}, overrides));
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(result.output.find(says) != std::string::npos, result.output);
  };
  check_refused(joined(kStates, {"optimizer.name=muon"}),
                "nvme, by which the host of a GPU updates, but muon multiplies matrices");
  check_refused(joined(kStates, {"optimizer.name=adafactor", "parallelism.tp=2"}),
                "nvme, and updates of adafactor exchange among 2 ranks of tp");
  check_refused(joined(kStates, {"optimizer.name=sgd"}), "sgd keeps no states");
  check_refused(joined(kCopies, {"metrics.diagnostics_interval=2"}),
                "looks at all parameters behind a step");
  check_refused({"offload={optimizer: nvme, master: host}", "precision.compute=bf16"},
                "does nothing without offload.optimizer: host");
  check_refused({"offload={optimizer: nvme, activations: [linear], activation_buffer: 1MiB}"},
                "is of files, and activations of a GPU go to the host's memory");
  check_refused({"offload={optimizer: nvme, buffer: 64KiB}", "model.hidden_size=256",
                 "model.intermediate_size=512"},
                "which an update needs at once, take");
  const Workspace here(kTinyRecipe);
  const auto fine = here.call(
      joined({"check", "recipe.yaml", "run.device=cuda"},
             {"offload={optimizer: nvme, activations: [linear], path: fast, checksum: false}"}));
  CHECK_MESSAGE(fine.exit_code == 0, fine.output);
}

}  // namespace llmtrain
