#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

constexpr bool kQuick = true;

}  // namespace

// Few dims, so that singular values are apart, and several choices of them. Eps is large beside
// what rounding leaves of directions in which a gradient has nothing.
const std::vector<Layout>& projected_layouts() {
  static const std::vector<Layout> kLayouts{
      {2, "llama", "parallelism.tp=2",
       "optimizer.name=galore | optimizer.rank=4 | optimizer.update_proj_gap=7"},
      {4, "llama", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "optimizer.name=galore | optimizer.rank=4 | optimizer.update_proj_gap=7"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=1",
       "training.global_batch_size=6 | optimizer.name=galore | optimizer.rank=3 | "
       "optimizer.weight_decay=0.1"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=3",
       "optimizer.name=galore | optimizer.rank=4 | optimizer.update_proj_gap=7"},
      {2, "llama", "parallelism.pp=2",
       "optimizer.name=galore | optimizer.rank=4 | optimizer.update_proj_gap=7"},
      {8, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=2",
       "optimizer.name=galore | optimizer.rank=4 | optimizer.update_proj_gap=7"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "optimizer.name=galore | optimizer.rank=3 | optimizer.update_proj_gap=7 | "
       "optimizer.lr=5e-3",
       kQuick},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=4 | parallelism.zero=1",
       "optimizer.name=galore | optimizer.rank=3 | optimizer.update_proj_gap=7 | "
       "optimizer.lr=5e-3"},
      {2, "llama", "parallelism.tp=2",
       "optimizer.name=ldadamw | optimizer.rank=4 | optimizer.eps=1e-4"},
      {4, "llama", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "optimizer.name=ldadamw | optimizer.rank=4 | optimizer.eps=1e-4"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=1",
       "training.global_batch_size=6 | optimizer.name=ldadamw | optimizer.rank=3 | "
       "optimizer.eps=1e-4 | optimizer.error_feedback=false | optimizer.weight_decay=0.1"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=3",
       "optimizer.name=ldadamw | optimizer.rank=4 | optimizer.eps=1e-4"},
      {2, "llama", "parallelism.pp=2",
       "optimizer.name=ldadamw | optimizer.rank=4 | optimizer.eps=1e-4"},
      {8, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=2",
       "optimizer.name=ldadamw | optimizer.rank=4 | optimizer.eps=1e-4"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "optimizer.name=ldadamw | optimizer.rank=3 | optimizer.eps=1e-4 | optimizer.lr=5e-3"},
      // Gaps grow; what has as many elements as states of 8 bits need keeps such ones.
      {2, "llama", "parallelism.tp=2",
       "optimizer.name=q_galore | optimizer.rank=4 | optimizer.update_proj_gap=1 | "
       "optimizer.queue_size=2 | optimizer.cos_threshold=0 | optimizer.eps=1e-4 | "
       "model.hidden_size=16 | model.head_dim=128 | model.intermediate_size=512 | "
       "optimizer.min_8bit_size=256"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=3",
       "optimizer.name=q_galore | optimizer.rank=4 | optimizer.update_proj_gap=2 | "
       "optimizer.queue_size=1 | optimizer.eps=1e-4 | optimizer.proj_bits=8"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "optimizer.name=q_galore | optimizer.rank=3 | optimizer.update_proj_gap=1 | "
       "optimizer.queue_size=1 | optimizer.eps=1e-4 | optimizer.proj_group_size=16 | "
       "optimizer.lr=5e-3"},
      {3, "llama", "parallelism.dp=3 | parallelism.zero=1",
       "training.global_batch_size=6 | optimizer.name=q_galore | optimizer.rank=3 | "
       "optimizer.update_proj_gap=2 | optimizer.eps=1e-4 | optimizer.min_8bit_size=0"},
  };
  return kLayouts;
}

}  // namespace llmtrain::test
