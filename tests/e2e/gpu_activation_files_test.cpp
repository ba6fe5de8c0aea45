// offload.activation_place: nvme on an emulated GPU: the same runs, bit for bit, with activations
// in a file of the host between the pass forth and the walk back.
#include <doctest/doctest.h>

#include "lib/base/units.hpp"
#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

/// The pool has room for four tensors.
const std::string kAll =
    "offload={activations: [block, attention, linear, norm, activation, experts, dropout], "
    "activation_place: nvme, activation_buffer: 1MiB}";

void check_same(const Overrides& settings, const Overrides& offload) {
  check_same_on_gpu(settings, offload,
                    {"activations: in a file of the host from the pass forth to the walk back",
                     "launches are made one by one in micro-batches, whose activations come and go",
                     "; micro-batches waited "});
}

std::int64_t number(const Json& plan, const char* of, const char* key) {
  return plan[of][key].get<std::int64_t>();
}

}  // namespace

TEST_CASE("a GPU's run has the bits that it has without when its activations go to a file" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_same({"model.num_hidden_layers=4"}, {kAll});
  check_same({"precision.compute=bf16", "training.global_batch_size=8"},
             {kAll, "offload.activations=[attention, activation]"});
  check_same({"activation_checkpoint.mode=full", "precision.compute=bf16",
              "training.global_batch_size=8", "model.num_hidden_layers=5"},
             {kAll, "offload.activations=[block]", "offload.checksum=false"});
  check_same({"precision.compute=fp8", "model.num_hidden_layers=4"}, {kAll});
  check_same({"model={architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
              "num_attention_heads: 2, max_position_embeddings: 64, resid_pdrop: 0.1, "
              "attn_pdrop: 0.1}",
              "eval={interval: 2, max_samples: 8}"},
             {kAll});
  check_same({"model={architecture: qwen3_moe, vocab_size: 257, hidden_size: 16, "
              "num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 32, "
              "moe_intermediate_size: 24, num_experts: 5, num_experts_per_tok: 3, "
              "max_position_embeddings: 64}"},
             {kAll});
  const Variable threads("LLMTRAIN_IO_URING", "off");
  check_same({"precision.compute=bf16", "optimizer.max_grad_norm=0.01"},
             {kAll, "offload.optimizer=nvme", "offload.master=nvme", "offload.parameters=nvme",
              "offload.buffer=96KiB"});
}

TEST_CASE("the plan of a GPU's activations in a file has the pool, the file and what goes there" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const Overrides deep = on_gpu({"model.num_hidden_layers=12"});
  const Json on_host = plan_of(here, joined(deep, {kAll, "offload.activation_place=host",
                                                   "offload.activation_buffer=256MiB"}));
  const Json in_file = plan_of(here, joined(deep, {kAll}));
  CHECK_FALSE(on_host.contains("activation_offload"));
  CHECK(in_file["step"]["category_bytes"] == on_host["step"]["category_bytes"]);
  CHECK(in_file["held_bytes"] == on_host["held_bytes"]);
  for (const char* key : {"step_down_bytes", "step_up_bytes"}) {
    CHECK(in_file["host_activations"][key] == on_host["host_activations"][key]);
  }
  CHECK(number(in_file, "host_activations", "pinned_bytes") == (1 << 20) + 4096);
  CHECK(number(in_file, "activation_offload", "step_written_bytes") ==
        number(in_file, "host_activations", "step_down_bytes"));
  CHECK(number(in_file, "activation_offload", "file_bytes") > 12 * 8 * (256 << 10));
  const auto ran = here.run(joined(deep, {kAll}));
  REQUIRE_MESSAGE(ran.exit_code == 0, ran.output);
  const auto down =
      static_cast<std::uint64_t>(number(in_file, "host_activations", "step_down_bytes"));
  CHECK(holds(ran.output,
              {fmt::format("activations: {} copied to the host", format_bytes(6 * down))}));
  const auto text = here.call(joined({"plan", "recipe.yaml"}, joined(deep, {kAll})));
  CHECK(
      holds(text.output, {"in a file of this rank; a step writes", "pinned memory, activations"}));
}

TEST_CASE(
    "what was saved with a GPU's activations in a file goes on without, and goes back in place" *
    doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  check_goes_on({"precision.compute=bf16"}, {{{kAll}, {}}, {{}, {kAll}}});
  check_way_back_in_place({kAll});
}

}  // namespace llmtrain
