#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

constexpr bool kQuick = true;

}  // namespace

const std::vector<Layout>& pipeline_layouts() {
  static const std::vector<Layout> kLayouts{
      {2, "llama", "parallelism.pp=2"},
      {3, "llama", "parallelism.pp=3 | parallelism.pp_schedule=gpipe", "", kQuick},
      {2, "gpt2", "parallelism.pp=2 | parallelism.pp_schedule=zb_h1",
       "model.tie_word_embeddings=false | model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | "
       "model.attn_pdrop=0.3",
       kQuick},
      {3, "llama", "parallelism.pp=3 | parallelism.pp_layers=[0,3,0]",
       "activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[norm,activation,attention,up_proj]"},
      {3, "gpt2",
       "parallelism.pp=3 | parallelism.pp_stages=[embed_tokens layers.0-1, layers.2, norm "
       "lm_head]"},
      // More stages than micro-batches.
      {4, "llama", "parallelism.pp=4", "model.num_hidden_layers=5 | training.global_batch_size=2"},
      {2, "llama",
       "parallelism.pp=2 | parallelism.pp_schedule=interleaved_1f1b | "
       "parallelism.pp_stages_per_rank=2",
       "model.num_hidden_layers=5 | activation_checkpoint.mode=full", kQuick},
      {2, "llama", "parallelism.pp=2 | parallelism.pp_schedule=zbv", "model.num_hidden_layers=5",
       kQuick},
      {3, "llama", "parallelism.pp=3 | parallelism.pp_schedule=v_half",
       "model.num_hidden_layers=7 | activation_checkpoint.mode=sqrt", kQuick},
      {2, "llama", "parallelism.pp=2 | parallelism.pp_schedule=dualpipev",
       "model.num_hidden_layers=5", kQuick},
      // Each rank of a pipeline computes again what it must, those beside it the same.
      {8, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3",
       "model.num_hidden_layers=5 | activation_checkpoint={mode: budget, budget: 0.5}"},
      {2, "gpt2", "parallelism.pp=2 | parallelism.pp_schedule=v_half",
       "model.num_hidden_layers=6 | model.resid_pdrop=0.2 | "
       "activation_checkpoint={mode: budget, budget: 0.85}"},
      // Each schedule beside other axes. Of a tied table both stages that have it add a term, whose
      // sum is summed over dp.
      {4, "gpt2", "parallelism.dp=2 | parallelism.pp=2"},
      {4, "gpt2", "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=eager_1f1b", "",
       kQuick},
      {4, "gpt2", "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=4"},
      {4, "gpt2",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=interleaved_1f1b | "
       "parallelism.pp_stages_per_rank=2",
       "model.num_hidden_layers=4 | model.embd_pdrop=0.1"},
      {4, "llama", "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=zb_h1"},
      {4, "llama", "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=gpipe",
       "activation_checkpoint.mode=full"},
      {8, "gemma2", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2"},
      {8, "gpt2",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | "
       "parallelism.tp_sequence_parallel=true",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {4, "llama", "parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=1"},
      {4, "llama",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=gpipe | parallelism.zero=3"},
      {4, "qwen3", "parallelism.tp=2 | parallelism.pp=2 | parallelism.pp_schedule=gpipe"},
      {3, "gpt2", "parallelism.pp=3 | parallelism.pp_schedule=eager_1f1b", "model.resid_pdrop=0.2"},
      {4, "llama",
       "parallelism.sp=2 | parallelism.sp_algo=ring | parallelism.pp=2 | "
       "parallelism.pp_schedule=eager_1f1b"},
      {8, "llama",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | "
       "parallelism.pp_schedule=eager_1f1b | parallelism.zero=3",
       "activation_checkpoint.mode=full"},
      {4, "llama", "parallelism.sp=2 | parallelism.pp=2 | parallelism.pp_schedule=dualpipev",
       "model.num_hidden_layers=4 | activation_checkpoint.mode=full"},
      {4, "gpt2", "parallelism.sp=2 | parallelism.pp=2 | parallelism.pp_schedule=gpipe",
       "model.attn_pdrop=0.3 | activation_checkpoint.mode=full"},
      {4, "llama",
       "parallelism.tp=2 | parallelism.pp=2 | parallelism.pp_schedule=interleaved_1f1b | "
       "parallelism.pp_stages_per_rank=2 | parallelism.tp_sequence_parallel=true",
       "model.num_hidden_layers=5"},
      {8, "llama",
       "parallelism.dp=2 | parallelism.sp=2 | parallelism.sp_algo=ring | parallelism.pp=2 | "
       "parallelism.pp_schedule=interleaved_1f1b | parallelism.pp_stages_per_rank=2 | "
       "parallelism.zero=2",
       "model.num_hidden_layers=4 | optimizer.name=muon"},
      {4, "llama",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=v_half | parallelism.zero=3",
       "model.num_hidden_layers=5 | activation_checkpoint.mode=full"},
      {8, "qwen3",
       "parallelism.tp=2 | parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.pp=2 | "
       "parallelism.pp_schedule=v_half | parallelism.tp_sequence_parallel=true",
       "model.num_hidden_layers=4 | training.global_batch_size=8"},
      {4, "gpt2",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.pp_schedule=dualpipev | "
       "parallelism.zero=1",
       "model.num_hidden_layers=4 | model.resid_pdrop=0.2 | model.attn_pdrop=0.3"},
      {8, "llama",
       "parallelism.tp=2 | parallelism.dp=2 | parallelism.pp=2 | "
       "parallelism.pp_schedule=dualpipev | parallelism.zero=3 | "
       "parallelism.tp_sequence_parallel=true",
       "model.num_hidden_layers=4"},
      {8, "llama",
       "parallelism.dp=4 | parallelism.pp=2 | parallelism.zero=3 | parallelism.dp_replicate=2",
       "training.global_batch_size=16"},
      {4, "llama",
       "parallelism.tp=2 | parallelism.pp=2 | parallelism.pp_schedule=zbv | "
       "parallelism.tp_sequence_parallel=true",
       "model.num_hidden_layers=5"},
      {8, "qwen3",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.pp_schedule=zb_h1 | "
       "parallelism.zero=1"},
      {3, "gpt2", "parallelism.pp=3", "model.resid_pdrop=0.2 | training.global_batch_size=8"},
      {8, "gemma2",
       "parallelism.tp=2 | parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=1 | "
       "parallelism.tp_sequence_parallel=true"},
      {6, "llama", "parallelism.dp=2 | parallelism.pp=3 | parallelism.zero=1",
       "training.global_batch_size=4 | optimizer.name=muon"},
  };
  return kLayouts;
}

}  // namespace llmtrain::test
