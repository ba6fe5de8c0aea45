#include "tests/mesh/layouts.hpp"

#include <fmt/format.h>

namespace llmtrain::test {

namespace {

// Widths that no axis divides into equal multiples of anything convenient.
constexpr std::string_view kRest = R"(
run: {seed: 3, threads: 1, device: cpu}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
precision: {compute: fp64}
optimizer: {lr: 2.0e-2, max_grad_norm: 0.3, eps: 1.0e-5}
lr_scheduler: {warmup: 0}
)";

ProbeModel model(std::string name, std::string_view architecture, std::string_view training) {
  return {std::move(name), "recipe: 1\nmodel: {" + std::string(architecture) + "}\ntraining: {" +
                               std::string(training) + "}" + std::string(kRest)};
}

// Eight heads, for families that have something of each head's own.
ProbeModel heads(std::string name, std::string_view architecture, std::string_view more = "") {
  const std::string_view kv = architecture == "mpt" ? "" : "num_key_value_heads: 2, head_dim: 6, ";
  const std::string_view width = architecture == "mpt" ? "" : "intermediate_size: 40, ";
  return model(std::move(name),
               fmt::format("architecture: {}, vocab_size: 259, hidden_size: 32, {}{}{} "
                           "num_hidden_layers: 2, num_attention_heads: 8, "
                           "max_position_embeddings: 64, initializer_range: 0.2",
                           architecture, kv, width, more),
               "seq_len: 12, micro_batch_size: 1, global_batch_size: 4, max_steps: 20");
}

}  // namespace

const std::vector<ProbeModel>& probe_models() {
  static const std::vector<ProbeModel> kModels{
      model("llama",
            "architecture: llama, vocab_size: 259, hidden_size: 24, intermediate_size: 40, "
            "head_dim: 6, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, "
            "max_position_embeddings: 64, initializer_range: 0.2",
            "seq_len: 12, micro_batch_size: 1, global_batch_size: 8, max_steps: 20"),
      model("gpt2",
            "architecture: gpt2, vocab_size: 259, hidden_size: 24, num_hidden_layers: 3, "
            "num_attention_heads: 4, max_position_embeddings: 64, initializer_range: 0.2",
            "seq_len: 12, micro_batch_size: 2, global_batch_size: 16, max_steps: 20"),
      heads("qwen3", "qwen3"),
      heads("gemma2", "gemma2", "sliding_window: 4, query_pre_attn_scalar: 6,"),
      heads("gpt_oss", "gpt_oss_dense", "sliding_window: 4,"),
      heads("mpt", "mpt"),
      heads("mixtral", "mixtral",
            "num_local_experts: 5, router_aux_loss_coef: 0.05, "
            "router_z_loss_coef: 0.01,"),
      model("qwen3_moe",
            "architecture: qwen3_moe, vocab_size: 259, hidden_size: 24, intermediate_size: 40, "
            "head_dim: 6, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, "
            "num_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 20, "
            "mlp_only_layers: [1], norm_topk_prob: false, router_aux_loss_coef: 0.03, "
            "max_position_embeddings: 64, initializer_range: 0.1",
            "seq_len: 12, micro_batch_size: 1, global_batch_size: 8, max_steps: 20"),
      model("dots1",
            "architecture: dots1, vocab_size: 259, hidden_size: 24, intermediate_size: 40, "
            "head_dim: 6, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, "
            "n_routed_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 20, "
            "n_shared_experts: 1, n_group: 4, topk_group: 2, bias_update_speed: 0.02, "
            "router_aux_loss_coef: 0.01, max_position_embeddings: 64, initializer_range: 0.1",
            "seq_len: 12, micro_batch_size: 1, global_batch_size: 8, max_steps: 20"),
  };
  return kModels;
}

constexpr bool kQuick = true;

const std::vector<Layout>& dense_layouts() {
  static const std::vector<Layout> kLayouts{
      {2, "llama", "parallelism.dp=2"},
      {4, "llama", "parallelism.dp=-1"},
      {8, "llama", "parallelism.dp=8"},
      {2, "gpt2", "parallelism.dp=2",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {4, "gpt2", "parallelism.dp=4", "activation_checkpoint.mode=full | model.resid_pdrop=0.2"},
      {6, "llama", "parallelism.dp=6", "training.global_batch_size=12"},
      {3, "llama", "parallelism.dp=3",
       "training.global_batch_size=6 | optimizer.max_grad_norm=null"},
      {2, "llama", "parallelism.tp=2"},
      {4, "llama", "parallelism.tp=4", "", kQuick},  // each key/value head on two ranks
      {4, "llama", "parallelism.dp=2 | parallelism.tp=2", "activation_checkpoint.mode=full"},
      {2, "llama", "parallelism.tp=2",
       "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm,activation]"},
      {2, "gpt2", "parallelism.tp=2",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {4, "gpt2", "parallelism.tp=4", "activation_checkpoint.mode=full | model.resid_pdrop=0.2"},
      {8, "qwen3", "parallelism.tp=8"},
      {4, "qwen3", "parallelism.tp=2 | parallelism.dp=2", "model.num_key_value_heads=1"},
      {4, "gemma2", "parallelism.tp=4"},
      {2, "gpt_oss", "parallelism.tp=2"},
      {4, "mpt", "parallelism.tp=4"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=1"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=1",
       "training.global_batch_size=6 | model.resid_pdrop=0.2"},
      {4, "llama", "parallelism.dp=4 | parallelism.zero=1", "optimizer.name=muon"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=1",
       "~optimizer.eps | optimizer.name=momentum"},
      {8, "gemma2", "parallelism.dp=8 | parallelism.zero=1",
       "training.global_batch_size=8 | activation_checkpoint.mode=full | "
       "optimizer.max_grad_norm=null"},
      // Noise on gradients, counted by logical elements.
      {8, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3",
       "optimizer.gradient_noise={eta: 1e-4}"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=1", "optimizer.gradient_noise={eta: 1e-4}"},
      {2, "llama", "parallelism.tp=2", "optimizer.gradient_noise={eta: 1e-4}"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=2",
       "training.global_batch_size=6 | optimizer.gradient_noise={eta: 1e-4}"},
      {2, "llama", "parallelism.pp=2", "optimizer.gradient_noise={eta: 1e-4}"},
      // One second moment for each row, head or norm, of which ranks of tp have parts or replicas.
      {2, "llama", "parallelism.tp=2", "optimizer.name=adam_mini"},
      {4, "llama", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "optimizer.name=adam_mini"},
      {4, "gpt2", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=1",
       "optimizer.name=adam_mini"},
      {8, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3",
       "optimizer.name=adam_mini"},
      {3, "llama", "parallelism.dp=3 | parallelism.zero=2",
       "training.global_batch_size=6 | optimizer.name=adam_mini"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "optimizer.name=adam_mini | optimizer.lr=5e-3"},
      // States of 8 bits in blocks of the whole tensor, which ranks of tp do not cut at these
      // widths.
      {2, "llama", "parallelism.dp=2 | parallelism.zero=2",
       "optimizer.name=adamw_8bit | optimizer.min_8bit_size=0"},
      {3, "llama", "parallelism.dp=3 | parallelism.zero=1",
       "training.global_batch_size=6 | ~optimizer.eps | optimizer.name=lion_8bit | "
       "optimizer.min_8bit_size=0"},
      {2, "llama", "parallelism.tp=2",
       "model.hidden_size=16 | model.head_dim=128 | model.intermediate_size=512 | "
       "optimizer.name=adamw_8bit | optimizer.min_8bit_size=256"},
      {8, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3",
       "model.hidden_size=16 | model.head_dim=128 | model.intermediate_size=512 | "
       "optimizer.name=adamw_8bit | optimizer.min_8bit_size=256"},
      {4, "llama", "parallelism.tp=2 | parallelism.dp=2 | parallelism.zero=1",
       "model.hidden_size=16 | model.head_dim=128 | model.intermediate_size=512 | "
       "~optimizer.eps | optimizer.name=lion_8bit | optimizer.min_8bit_size=256"},
      {4, "qwen3_moe", "parallelism.dp=4 | parallelism.ep=2 | parallelism.zero=1",
       "model.moe_intermediate_size=32 | optimizer.name=adamw_8bit | optimizer.min_8bit_size=256 | "
       "optimizer.lr=5e-3"},
      // Matrices that Muon needs whole, of which ranks of tp have parts, some of them the same.
      {2, "llama", "parallelism.tp=2", "optimizer.name=muon"},
      {4, "llama", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "optimizer.name=muon"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=1",
       "optimizer.name=muon"},
      {8, "llama",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3 | "
       "parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=5 | optimizer.name=muon"},
      {4, "qwen3_moe", "parallelism.dp=2 | parallelism.tp=2 | parallelism.ep=2",
       "optimizer.name=muon"},
      // Second moments of rows and columns, of which ranks of tp have parts or sums. (No biases of
      // keys, whose gradients are noise, of which these make steps.) CAME's first steps are a
      // hundred times its rate: at a larger one they carry rounding far.
      {2, "llama", "parallelism.tp=2",
       "~optimizer.eps | optimizer.name=adafactor | optimizer.beta1=0.5"},
      {8, "qwen3", "parallelism.dp=2 | parallelism.tp=4 | parallelism.zero=2",
       "~optimizer.eps | optimizer.name=adafactor"},
      {4, "llama", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "~optimizer.eps | optimizer.name=came | optimizer.lr=2e-5"},
      {4, "qwen3", "parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=3",
       "~optimizer.eps | optimizer.name=came | optimizer.lr=2e-5"},
      {4, "llama", "parallelism.tp=4", "~optimizer.eps | optimizer.name=sm3"},
      {4, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=1",
       "~optimizer.eps | optimizer.name=sm3 | optimizer.momentum=0"},
      {2, "llama", "parallelism.tp=2", "~optimizer.eps | optimizer.name=lion"},
      {2, "llama", "parallelism.pp=2", "~optimizer.eps | optimizer.name=nesterov"},
      {4, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=1",
       "optimizer.name=amsgrad"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=2",
       "optimizer.name=adagrad | optimizer.initial_accumulator_value=0.1"},
      // Whose first steps are ten times the rate: at a larger one they carry rounding far.
      {4, "llama", "parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=3",
       "optimizer.name=rmsprop | optimizer.centered=true | optimizer.momentum=0.5 | "
       "optimizer.lr=1e-4"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=2"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=2",
       "training.global_batch_size=12 | model.resid_pdrop=0.2 | activation_checkpoint.mode=full"},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=3"},
      {3, "gpt2", "parallelism.dp=3 | parallelism.zero=3",
       "training.global_batch_size=12 | model.resid_pdrop=0.2 | activation_checkpoint.mode=sqrt"},
      {4, "llama", "parallelism.dp=4 | parallelism.zero=3",
       "optimizer.name=muon | activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[norm,activation,attention,up_proj]",
       kQuick},
      {8, "gemma2", "parallelism.dp=4 | parallelism.tp=2 | parallelism.zero=3",
       "optimizer.max_grad_norm=null"},
      {4, "gpt2", "parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=2"},
      {4, "mpt", "parallelism.dp=2 | parallelism.tp=2 | parallelism.zero=2"},
      {6, "llama", "parallelism.dp=3 | parallelism.pp=2 | parallelism.zero=2",
       "training.global_batch_size=6 | optimizer.name=muon"},
      {4, "llama",
       "parallelism.dp=2 | parallelism.pp=2 | parallelism.zero=3 | parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=5 | activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[norm,activation]"},
      {8, "qwen3",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=3 | "
       "parallelism.tp_sequence_parallel=true | parallelism.pp_schedule=zb_h1",
       "activation_checkpoint.mode=full"},
      {2, "llama", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true"},
      {4, "llama", "parallelism.dp=2 | parallelism.tp=2 | parallelism.tp_sequence_parallel=true",
       "activation_checkpoint.mode=full", kQuick},
      {2, "llama", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true",
       "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm,activation]"},
      {4, "gpt2", "parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {4, "gemma2", "parallelism.tp=2 | parallelism.tp_sequence_parallel=true | parallelism.dp=2"},
      {8, "qwen3", "parallelism.tp=8 | parallelism.tp_sequence_parallel=true",
       "training.seq_len=16"},
      {4, "llama", "parallelism.dp=4 | parallelism.zero=1 | parallelism.dp_replicate=2"},
      {4, "gpt2", "parallelism.dp=4 | parallelism.zero=2 | parallelism.dp_replicate=2",
       "model.resid_pdrop=0.2"},
      {8, "llama",
       "parallelism.dp=4 | parallelism.sp=2 | parallelism.zero=3 | parallelism.dp_replicate=2",
       "optimizer.name=muon", kQuick},
      {2, "llama", "parallelism.dp=2 | parallelism.zero=3 | parallelism.dp_replicate=2"},
      {2, "llama", "parallelism.sp=2"},
      {2, "llama", "parallelism.sp=2 | parallelism.sp_algo=ulysses"},
      // Fewer key/value heads than ranks; several sequences in a micro-batch.
      {4, "llama", "parallelism.sp=4 | parallelism.sp_algo=ulysses", "training.micro_batch_size=2",
       kQuick},
      {3, "llama", "parallelism.sp=3", "training.micro_batch_size=2"},
      {2, "gpt2", "parallelism.sp=2",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3"},
      {4, "gpt2", "parallelism.sp=4 | parallelism.sp_algo=ulysses",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3 | "
       "activation_checkpoint.mode=full"},
      {2, "gpt2", "parallelism.sp=2 | parallelism.sp_algo=ulysses",
       "model.attn_pdrop=0.3 | activation_checkpoint.mode=selective | "
       "activation_checkpoint.ops=[attention]"},
      {4, "gemma2", "parallelism.sp=2 | parallelism.dp=2"},
      {4, "gemma2", "parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.tp=2"},
      {2, "gpt_oss", "parallelism.sp=2 | parallelism.sp_algo=ulysses"},
      {2, "gpt_oss", "parallelism.sp=2"},
      {4, "mpt", "parallelism.sp=4 | parallelism.sp_algo=ulysses"},
      {2, "mpt", "parallelism.sp=2"},
      {2, "llama", "parallelism.sp=2 | parallelism.sp_algo=ring"},
      {3, "llama", "parallelism.sp=3 | parallelism.sp_algo=ring", "training.micro_batch_size=2"},
      {4, "llama", "parallelism.sp=4 | parallelism.sp_algo=ring",
       "training.micro_batch_size=2 | training.seq_len=8"},
      {3, "gpt2", "parallelism.sp=3 | parallelism.sp_algo=ring",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3 | "
       "activation_checkpoint.mode=full",
       kQuick},
      {6, "gemma2",
       "parallelism.sp=3 | parallelism.sp_algo=ring | parallelism.dp=2 | parallelism.zero=3"},
      {3, "gpt_oss", "parallelism.sp=3 | parallelism.sp_algo=ring"},
      {6, "mpt", "parallelism.sp=3 | parallelism.sp_algo=ring | parallelism.tp=2"},
      {8, "qwen3",
       "parallelism.sp=2 | parallelism.sp_algo=ring | parallelism.tp=2 | "
       "parallelism.tp_sequence_parallel=true | parallelism.pp=2 | parallelism.pp_schedule=zb_h1",
       "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm,attention]"},
      {4, "gpt2",
       "parallelism.sp=2 | parallelism.sp_algo=ring | parallelism.pp=2 | "
       "parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=4 | model.attn_pdrop=0.3"},
      {8, "qwen3",
       "parallelism.sp=2 | parallelism.tp=2 | parallelism.tp_sequence_parallel=true | "
       "parallelism.pp=2 | parallelism.pp_schedule=zb_h1",
       "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm,attention]"},
      // Ranks of tp cut the pieces of those of sp.
      {8, "llama", "parallelism.sp=2 | parallelism.tp=4 | parallelism.tp_sequence_parallel=true",
       "training.seq_len=8 | training.micro_batch_size=2"},
      {8, "llama",
       "parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.dp=2 | parallelism.zero=3 | "
       "parallelism.pp=2"},
      // Neighbours share heads, groups of them rows.
      {4, "llama", "parallelism.sp=4 | parallelism.sp_ulysses=2",
       "training.micro_batch_size=2 | training.seq_len=8"},
      {6, "gpt2", "parallelism.sp=6 | parallelism.sp_ulysses=2 | parallelism.sp_algo=ring",
       "model.resid_pdrop=0.2 | model.embd_pdrop=0.1 | model.attn_pdrop=0.3 | "
       "activation_checkpoint.mode=full"},
      {4, "gpt_oss", "parallelism.sp=4 | parallelism.sp_ulysses=2", "training.seq_len=16", kQuick},
      {4, "mpt", "parallelism.sp=4 | parallelism.sp_ulysses=2 | parallelism.sp_algo=ring",
       "training.seq_len=16"},
      {8, "gemma2",
       "parallelism.sp=4 | parallelism.sp_ulysses=2 | parallelism.dp=2 | parallelism.zero=3",
       "training.seq_len=16"},
      {8, "qwen3",
       "parallelism.sp=4 | parallelism.sp_ulysses=2 | parallelism.tp=2 | "
       "parallelism.tp_sequence_parallel=true | parallelism.order=[sp, tp, dp, pp]",
       "training.seq_len=16"},
      {4, "llama", "parallelism.sp=2 | parallelism.dp=2 | parallelism.zero=1"},
      {4, "gpt2", "parallelism.sp=2 | parallelism.dp=2 | parallelism.zero=2",
       "model.resid_pdrop=0.2 | activation_checkpoint.mode=every_k | activation_checkpoint.k=2"},
      {4, "llama", "parallelism.sp=2 | parallelism.tp=2"},
      {4, "llama",
       "parallelism.sp=2 | parallelism.sp_algo=ulysses | parallelism.tp=2 | "
       "parallelism.tp_sequence_parallel=true",
       "activation_checkpoint.mode=full"},
      {4, "gpt2", "parallelism.sp=2 | parallelism.pp=2 | parallelism.pp_schedule=zbv",
       "model.num_hidden_layers=4 | model.attn_pdrop=0.3"},
      // Every axis at 2.
      {16, "qwen3_moe",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.sp=2 | parallelism.pp=2 | "
       "parallelism.ep=2 | parallelism.zero=3 | parallelism.tp_sequence_parallel=true",
       "training.seq_len=8", kQuick},
      {16, "qwen3",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.sp=2 | parallelism.pp=2 | "
       "parallelism.zero=3 | parallelism.tp_sequence_parallel=true",
       "training.seq_len=16"},
      {8, "llama",
       "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=2 | "
       "parallelism.order=[pp, dp, tp, sp]"},
      {8, "gemma2", "parallelism.dp=2 | parallelism.tp=2 | parallelism.pp=2 | parallelism.zero=1",
       "training.z_loss_coef=0.1", kQuick},
  };
  return kLayouts;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> kLayouts = [] {
    std::vector<Layout> all = dense_layouts();
    all.insert(all.end(), pipeline_layouts().begin(), pipeline_layouts().end());
    all.insert(all.end(), expert_layouts().begin(), expert_layouts().end());
    all.insert(all.end(), projected_layouts().begin(), projected_layouts().end());
    return all;
  }();
  return kLayouts;
}

}  // namespace llmtrain::test
