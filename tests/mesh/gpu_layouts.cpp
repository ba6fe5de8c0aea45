// Layouts that are tried on GPUs: every axis, and what their kernels and exchanges do otherwise.
#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

const std::vector<Layout>& gpu_layouts() {
  static const std::vector<Layout> kLayouts{
      {2, "llama", "parallelism.dp=2"},
      {2, "gpt2", "parallelism.dp=2 | parallelism.zero=1",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {3, "llama", "parallelism.dp=3 | parallelism.zero=2", "training.global_batch_size=6"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=3", "activation_checkpoint.mode=full"},
      {2, "llama", "parallelism.tp=2"},
      {2, "llama", "parallelism.tp=2", "optimizer.name=muon"},
      {2, "qwen3", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true"},
      {2, "gemma2", "parallelism.tp=2", "training.z_loss_coef=0.1"},
      {2, "llama", "parallelism.pp=2"},
      {2, "gpt2", "parallelism.pp=2 | parallelism.pp_schedule=zbv", "model.num_hidden_layers=4"},
      {2, "llama", "parallelism.sp=2"},
      {2, "llama", "parallelism.sp=2 | parallelism.sp_algo=ulysses"},
      {2, "llama", "parallelism.sp=2 | parallelism.sp_algo=ring"},
      {4, "llama", "parallelism.dp=2 | parallelism.tp=2"},
      {2, "mixtral", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true"},
      {3, "dots1", "parallelism.pp=3", "optimizer.lr=5e-3"},  // neighbours on both sides
      {2, "qwen3_moe", "parallelism.sp=2", "model.capacity_factor=0.7"},
      {2, "dots1", "parallelism.dp=2 | parallelism.ep=2", "optimizer.lr=5e-3"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2 | parallelism.zero=3",
       "model.capacity_factor=1.2 | activation_checkpoint.mode=full"},
      {4, "qwen3_moe",
       "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=1 | parallelism.ep_room=2", ""},
  };
  return kLayouts;
}

}  // namespace llmtrain::test
