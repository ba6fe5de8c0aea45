// Layouts of models with experts.
#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

constexpr bool kQuick = true, kOneWord = true;

}  // namespace

const std::vector<Layout>& expert_layouts() {
  static const std::vector<Layout> kLayouts{
      {2, "mixtral", "parallelism.dp=2"},
      {4, "mixtral", "parallelism.tp=4", "model.num_local_experts=3"},
      {2, "qwen3_moe", "parallelism.sp=2"},
      {2, "qwen3_moe", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true",
       "activation_checkpoint.mode=full | training.micro_batch_size=2"},
      {3, "qwen3_moe", "parallelism.pp=3 | parallelism.pp_schedule=zb_h1",
       "activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[norm,activation,up_proj]"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.zero=3"},
      {8, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=2",
       "training.micro_batch_size=2"},
      {2, "mixtral", "parallelism.dp=2 | parallelism.ep=2", "model.num_local_experts=4"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=4 | parallelism.zero=1",
       "training.micro_batch_size=2"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.sp=2 | parallelism.ep=4",
       "activation_checkpoint.mode=full", kQuick},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[norm,activation,up_proj]"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.pp_schedule=zb_h1"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.pp_schedule=dualpipev",
       "model.num_hidden_layers=4 | optimizer.lr=5e-3"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | parallelism.pp_schedule=v_half",
       "model.num_hidden_layers=4 | optimizer.lr=5e-3"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | parallelism.pp_schedule=gpipe"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=4 | optimizer.lr=5e-3"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.pp_schedule=interleaved_1f1b | parallelism.pp_stages_per_rank=2",
       "model.num_hidden_layers=4 | optimizer.lr=5e-3"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.pp_schedule=eager_1f1b",
       "optimizer.lr=5e-3"},
      {4, "qwen3_moe", "parallelism.sp=4 | parallelism.sp_ulysses=2 | parallelism.ep=4",
       "training.seq_len=16 | optimizer.lr=5e-3"},
      {6, "qwen3_moe",
       "parallelism.sp=3 | parallelism.sp_algo=ring | parallelism.dp=2 | parallelism.ep=2"},
      {4, "qwen3_moe",
       "parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.dp=2 | parallelism.ep=4 | "
       "parallelism.zero=2"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=2"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=3",
       "activation_checkpoint.mode=full"},
      {4, "qwen3_moe",
       "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=3 | parallelism.dp_replicate=2"},
      {8, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.zero=1"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=2",
       "optimizer.name=muon"},
      {8, "qwen3_moe",
       "parallelism.dp=4 | parallelism.tp=2 | parallelism.ep=2 | parallelism.zero=3",
       "~optimizer.eps | optimizer.name=adafactor | optimizer.lr=5e-3"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=1",
       "~optimizer.eps | optimizer.name=came | optimizer.lr=2e-5"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "~optimizer.eps | optimizer.name=sm3 | optimizer.lr=5e-3"},
      // As many rows to every rank.
      {2, "qwen3_moe", "parallelism.dp=2 | parallelism.ep=2 | parallelism.ep_room=1.9",
       "training.micro_batch_size=4"},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2 | parallelism.ep_room=2",
       "activation_checkpoint.mode=full"},
      {4, "mixtral",
       "parallelism.dp=4 | parallelism.ep=4 | parallelism.zero=3 | parallelism.ep_room=3.5",
       "model.num_local_experts=4"},
      {4, "dots1",
       "parallelism.dp=2 | parallelism.sp=2 | parallelism.ep=2 | parallelism.zero=1 | "
       "parallelism.ep_room=2",
       "optimizer.lr=5e-3", kQuick},
      {8, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.ep=2 | "
       "parallelism.ep_room=2",
       "model.capacity_factor=0.7"},
      // At a learning rate at which twenty steps do not carry rounding up to the bound.
      {2, "dots1", "parallelism.dp=2 | parallelism.ep=2", "optimizer.lr=5e-3"},
      {2, "dots1", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true",
       "activation_checkpoint.mode=full | optimizer.lr=5e-3"},
      {2, "dots1", "parallelism.pp=2 | parallelism.pp_schedule=zb_h1", "optimizer.lr=5e-3"},
      {4, "dots1", "parallelism.dp=2 | parallelism.sp=2 | parallelism.ep=2 | parallelism.zero=3",
       "optimizer.lr=5e-3"},
      {2, "dots1", "parallelism.sp=2 | parallelism.ep=2", "optimizer.lr=5e-3"},
      // Experts with room for some of their choices.
      {2, "mixtral", "parallelism.dp=2 | parallelism.ep=2",
       "model.num_local_experts=4 | model.capacity_factor=0.6"},
      {2, "qwen3_moe", "parallelism.dp=2", "model.capacity_factor=1 | training.micro_batch_size=2"},
      {2, "qwen3_moe", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true",
       "model.capacity_factor=0.7 | training.micro_batch_size=2"},
      {2, "qwen3_moe", "parallelism.sp=2",
       "model.capacity_factor=0.7 | training.micro_batch_size=2"},
      {2, "qwen3_moe", "parallelism.sp=2 | parallelism.sp_algo=ulysses",
       "model.capacity_factor=0.7"},
      {3, "qwen3_moe", "parallelism.sp=3 | parallelism.sp_algo=ring",
       "model.capacity_factor=0.7 | training.micro_batch_size=2"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=4 | parallelism.zero=3",
       "model.capacity_factor=1.2 | training.micro_batch_size=2"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.sp=2 | parallelism.ep=4",
       "model.capacity_factor=0.5 | activation_checkpoint.mode=full"},
      {8, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.ep=2",
       "model.capacity_factor=0.7"},
      {2, "dots1", "parallelism.dp=2 | parallelism.ep=2",
       "model.capacity_factor=0.8 | optimizer.lr=5e-3"},
      {2, "dots1", "parallelism.pp=2 | parallelism.pp_schedule=zb_h1",
       "model.capacity_factor=0.8 | optimizer.lr=5e-3"},
      // Most experts have no token.
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=4",
       "model.num_experts=64 | training.seq_len=4"},
      // One rank has all tokens, the others none.
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=4", "model.num_experts_per_tok=1", kQuick,
       kOneWord},
      {4, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2 | parallelism.zero=3",
       "model.num_experts_per_tok=1 | activation_checkpoint.mode=full", !kQuick, kOneWord},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.sp=2 | parallelism.ep=4",
       "model.num_experts_per_tok=1 | training.micro_batch_size=2", !kQuick, kOneWord},
  };
  return kLayouts;
}

}  // namespace llmtrain::test
