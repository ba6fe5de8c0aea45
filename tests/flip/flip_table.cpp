#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

const std::string_view kBaseRecipe = R"(
recipe: 1
run: {seed: 5, threads: 1}
model: {architecture: llama, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64,
        initializer_range: 0.2}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4, max_steps: 4}
optimizer: {lr: 5.0e-2}
lr_scheduler: {warmup: 0}
checkpoint: {interval: 2}
eval: {interval: 2}
metrics: {interval: 1}
)";

namespace {

using enum Sight;

constexpr std::string_view kRamp =
    "training.global_batch_size=8 | training.rampup_batch_size={start: 2, increment: 2, samples: "
    "12}";

const std::vector<Flip> kRun{
    {"run.name", {files}, "", {"run.name=other"}},
    {"run.output_dir", {files}, "", {"run.output_dir=elsewhere"}},
    {"run.seed", {data, weights}, "", {"run.seed=6"}},
    {"run.device", {plan}, "", {"run.device=cuda"}},
    {"run.device", {plan}, "run.device=cuda", {"run.device=cpu"}},
    {"run.library_workspace", {plan}, "run.device=cuda", {"run.library_workspace=1MiB"}},
    {"run.tune_products", {plan}, "run.device=cuda", {"run.tune_products=false"}},
    {"run.product_cache", {files}, "run.device=cuda", {"run.product_cache=elsewhere.txt"}},
    {"run.determinism",
     {plan},
     "run.device=cuda",
     {"run.determinism=fast", "run.determinism=layout"}},
    {"run.determinism", {plan}, "", {"run.determinism=layout"}},
    {"run.virtual_workers", {plan}, "run.determinism=layout", {"run.virtual_workers=1"}},
    {"run.cuda_graphs", {plan}, "run.device=cuda", {"run.cuda_graphs=off"}},
    {"run.attention",
     {plan},
     "run.device=cuda | precision.compute=bf16 | data.packing.cross_document_attention=true",
     {"run.attention=own"}},
    {"run.attention", {plan}, "run.device=cuda | precision.compute=bf16", {"run.attention=cudnn"}},
    {"run.threads", {plan}, "", {"run.threads=2"}},
    {"run.memory_limit", {exit}, "", {"run.memory_limit=1MiB"}},
};

// More ranks than there are processes. A process by itself waits for nobody and calls no
// collective: mesh_test sees the last two.
const std::vector<Flip> kParallelism{
    {"resilience.hang_timeout", {}, "", {"resilience.hang_timeout=2s"}},
    {"debug.check_collectives", {}, "", {"debug.check_collectives=true"}},
    {"parallelism.dp", {exit}, "", {"parallelism.dp=2"}},
    {"parallelism.tp", {exit}, "", {"parallelism.tp=2"}},
    {"parallelism.zero", {plan}, "parallelism.dp=2", {"parallelism.zero=1"}},
    {"precision.grad_reduce",
     {plan},
     "parallelism.dp=2 | precision.compute=fp64",
     {"precision.grad_reduce=bf16", "precision.grad_reduce=fp32"}},
    {"parallelism.ep",
     {plan},
     "parallelism.dp=2 | model.architecture=mixtral",
     {"parallelism.ep=2"}},
    {"parallelism.ep_room",
     {plan},
     "parallelism.dp=2 | parallelism.ep=2 | model.architecture=mixtral",
     {"parallelism.ep_room=1.5"}},
    {"parallelism.tp_sequence_parallel",
     {plan},
     "parallelism.tp=2",
     {"parallelism.tp_sequence_parallel=true"}},
    {"parallelism.dp_replicate",
     {plan},
     "parallelism.dp=4 | parallelism.zero=2 | training.micro_batch_size=1",
     {"parallelism.dp_replicate=2"}},
    {"parallelism.order",
     {plan},
     "parallelism.dp=2 | parallelism.tp=2",
     {"parallelism.order=[dp, sp, tp, pp]"}},
    {"parallelism.sp", {exit}, "", {"parallelism.sp=2"}},
    {"parallelism.sp_algo",
     {plan},
     "parallelism.sp=2",
     {"parallelism.sp_algo=ulysses", "parallelism.sp_algo=ring"}},
    {"parallelism.sp_ulysses", {plan}, "parallelism.sp=4", {"parallelism.sp_ulysses=2"}},
    {"parallelism.gpu_collectives",
     {plan},
     "parallelism.dp=2 | run.device=cuda",
     {"parallelism.gpu_collectives=nccl", "parallelism.gpu_collectives=host"}},
    {"parallelism.pp", {exit}, "", {"parallelism.pp=2"}},
    {"parallelism.pp_schedule",
     {plan},
     "parallelism.pp=2 | model.num_hidden_layers=4 | training.global_batch_size=8 | "
     "training.micro_batch_size=1",
     {"parallelism.pp_schedule=gpipe", "parallelism.pp_schedule=eager_1f1b",
      "parallelism.pp_schedule=zb_h1", "parallelism.pp_schedule=zbv",
      "parallelism.pp_schedule=v_half", "parallelism.pp_schedule=dualpipev",
      "parallelism.pp_schedule=interleaved_1f1b | parallelism.pp_stages_per_rank=2"}},
    {"parallelism.pp_layers",
     {plan},
     "parallelism.pp=2 | model.num_hidden_layers=4",
     {"parallelism.pp_layers=[3,1]"}},
    {"parallelism.pp_stages",
     {plan},
     "parallelism.pp=2 | model.num_hidden_layers=4",
     {"parallelism.pp_stages=[embed_tokens layers.0-2, layers.3 norm lm_head]"}},
    {"parallelism.pp_costs",
     {plan},
     "parallelism.pp=2 | model.num_hidden_layers=4 | training.global_batch_size=8 | "
     "training.micro_batch_size=1 | parallelism.pp_schedule=v_half",
     {"parallelism.pp_costs=[1,1.6,0.4]"}},
    {"parallelism.pp_stages_per_rank",
     {plan},
     "parallelism.pp=2 | parallelism.pp_schedule=interleaved_1f1b | "
     "model.num_hidden_layers=4 | parallelism.pp_stages_per_rank=1",
     {"parallelism.pp_stages_per_rank=2"}},
};

constexpr std::string_view kMixture =
    "data.sources=[{path: text.txt, max_document_bytes: 1024, weight: 3}, {path: other.txt, "
    "max_document_bytes: 1024, weight: 1}]";
constexpr std::string_view kStages =
    "data.sources=[{path: text.txt, max_document_bytes: 1024, weight: 3}, {path: other.txt, "
    "max_document_bytes: 1024, weight: 1}] | data.stages=[{start: 2, weights: [1, 1]}]";

const std::vector<Flip> kData{
    {"tokenizer.type", {data}, "", {"tokenizer.type=bpe | tokenizer.vocab_size=280"}},
    {"tokenizer.path", {data}, "tokenizer.vocab_size=280", {"tokenizer.path=tokenizer"}},
    {"tokenizer.vocab_size", {data}, "tokenizer.vocab_size=280", {"tokenizer.vocab_size=290"}},
    {"tokenizer.pattern",
     {data},
     "tokenizer.vocab_size=295 | data.sources=[{path: code.txt, max_document_bytes: 1024}]"},
    {"data.sources",
     {data},
     "",
     {"data.sources=[{path: text.txt, max_document_bytes: 1024}, {path: other.txt}]"}},
    {"data.sources.*.name", {metrics}, kMixture, {"data.sources.0.name=words"}},
    {"data.sources.*.weight",
     {data, metrics},
     kMixture,
     {"data.sources.0.weight=1", "data.sources.0.weight=0"}},
    {"data.sources.*.max_epochs", {data, metrics}, kMixture, {"data.sources.0.max_epochs=0.01"}},
    {"data.stages",
     {data, metrics},
     kMixture,
     {"data.stages=[{start: 2, weights: [1, 1]}]",
      "data.stages=[{start: 2, weights: [1, 1]}, {start: 75%, weights: [0, 1]}]"}},
    {"data.stages.*.start",
     {data, metrics},
     kStages,
     {"data.stages.0.start=3", "data.stages.0.start=64 tok"}},
    {"data.stages.*.weights", {data, metrics}, kStages, {"data.stages.0.weights=[0, 2]"}},
    {"data.sources.*.path", {data}, "", {"data.sources.0.path=other.txt"}},
    {"data.sources.*.format",
     {data},
     "data.sources=[{path: lines.jsonl, max_document_bytes: 1024}]",
     {"data.sources.0.format=text"}},
    {"data.sources.*.format",
     {data},
     "data.sources=[{path: lines.txt, max_document_bytes: 1024}]",
     {"data.sources.0.format=jsonl"}},
    {"data.sources.*.format",
     {data},
     "data.sources=[{path: llmc.bin, format: llmc}]",
     {"data.sources=[{path: megatron.bin, format: megatron}]"}},
    {"data.sources.*.text_key",
     {data},
     "data.sources=[{path: lines.jsonl, max_document_bytes: 1024}]",
     {"data.sources.0.text_key=other"}},
    {"data.sources.*.prompt_key",
     {data},
     "data.sources=[{path: lines.jsonl, prompt_key: text, completion_key: other}]",
     {"data.sources.0.prompt_key=number"}},
    {"data.sources.*.completion_key",
     {data, weights},
     "data.sources=[{path: lines.jsonl, prompt_key: text, completion_key: other}]",
     {"data.sources.0.completion_key=number"}},
    {"data.sources.*.max_document_bytes", {data}, "", {"data.sources.0.max_document_bytes=2048"}},
    {"data.eval_modulus", {data}, "", {"data.eval_modulus=3"}},
    {"data.eval_remainder", {data}, "", {"data.eval_remainder=1"}},
    {"data.cache_dir", {files}, "", {"data.cache_dir=cache"}},
    {"data.shard_size", {files}, "", {"data.shard_size=4KiB"}},
    {"data.max_decompressed_size",
     {exit},
     "data.sources=[{path: text.txt.gz, max_document_bytes: 1024}]",
     {"data.max_decompressed_size=1KiB"}},
    {"data.packing.strategy", {data, weights}, "", {"data.packing.strategy=best_fit"}},
    {"data.packing.cross_document_attention",
     {data, weights},
     "",
     {"data.packing.cross_document_attention=true"}},
    {"data.packing.reset_positions", {data}, "", {"data.packing.reset_positions=false"}},
};

const std::vector<Flip> kTraining{
    {"training.seq_len", {plan, data}, "", {"training.seq_len=32"}},
    {"training.micro_batch_size", {plan, operations}, "", {"training.micro_batch_size=4"}},
    {"training.global_batch_size", {plan, operations}, "", {"training.global_batch_size=8"}},
    {"training.rampup_batch_size",
     {metrics},
     "",
     {"training.rampup_batch_size={start: 2, increment: 2, samples: 4}"}},
    {"training.rampup_batch_size.start", {metrics}, kRamp, {"training.rampup_batch_size.start=4"}},
    {"training.rampup_batch_size.increment",
     {metrics},
     kRamp,
     {"training.rampup_batch_size.increment=6"}},
    {"training.rampup_batch_size.samples",
     {metrics},
     kRamp,
     {"training.rampup_batch_size.samples=6"}},
    {"training.loss_chunk",
     {plan},
     "training.seq_len=64 | training.micro_batch_size=4",
     {"training.loss_chunk=4KiB"}},
    {"training.z_loss_coef", {plan, metrics}, "", {"training.z_loss_coef=0.01"}},
    {"training.max_steps", {metrics}, "", {"training.max_steps=3"}},
    {"training.max_tokens",
     {metrics},
     "~training.max_steps | training.max_tokens=256",
     {"training.max_tokens=192"}},
    {"training.num_epochs",
     {metrics},
     "~training.max_steps | training.num_epochs=0.04",
     {"training.num_epochs=0.02"}},
    {"training.max_time", {metrics}, "", {"training.max_time=0.000001s"}},
    {"activation_checkpoint.mode",
     {operations},
     "model.num_hidden_layers=3",
     {"activation_checkpoint.mode=full",
      "activation_checkpoint.mode=every_k | activation_checkpoint.k=2",
      "activation_checkpoint.mode=sqrt",
      "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm]",
      "activation_checkpoint.mode=budget | activation_checkpoint.budget=0.6"}},
    {"activation_checkpoint.budget",
     {plan, operations},
     "model.num_hidden_layers=3 | activation_checkpoint.mode=budget | "
     "activation_checkpoint.budget=1.0",
     {"activation_checkpoint.budget=0.8", "activation_checkpoint.budget=0.6"}},
    {"activation_checkpoint.k",
     {operations},
     "activation_checkpoint.mode=every_k | activation_checkpoint.k=1",
     {"activation_checkpoint.k=2"}},
    {"activation_checkpoint.ops",
     {operations},
     "activation_checkpoint.mode=selective | activation_checkpoint.ops=[norm]",
     {"activation_checkpoint.ops=[activation]", "activation_checkpoint.ops=[attention]",
      "activation_checkpoint.ops=[up_proj]", "activation_checkpoint.ops=[norm, activation]"}},
};

const std::vector<Flip> kSchedule{
    {"lr_scheduler.type", {metrics}, "training.max_steps=24 | eval.interval=null"},
    {"lr_scheduler.min_lr_ratio", {metrics}, "", {"lr_scheduler.min_lr_ratio=0.5"}},
    {"lr_scheduler.min_lr_ratio",
     {metrics},
     "lr_scheduler.decay=3",
     {"lr_scheduler.min_lr_ratio=0.5"},
     "lr_scheduler.type: wsd"},
    {"lr_scheduler.num_cycles", {metrics}, "", {"lr_scheduler.num_cycles=2"}},
    {"lr_scheduler.cycle_mult",
     {metrics},
     "lr_scheduler.num_cycles=2",
     {"lr_scheduler.cycle_mult=3"}},
    {"lr_scheduler.step_size", {metrics}, "", {"lr_scheduler.step_size=2"}},
    {"lr_scheduler.gamma", {metrics}, "", {"lr_scheduler.gamma=0.5"}},
    {"lr_scheduler.decay", {metrics}, "lr_scheduler.decay=3", {"lr_scheduler.decay=50%"}},
    {"lr_scheduler.decay_style", {metrics}, "lr_scheduler.decay=3"},
    {"lr_scheduler.timescale", {metrics}, "", {"lr_scheduler.timescale=2"}},
    {"lr_scheduler.warmup", {metrics}, "", {"lr_scheduler.warmup=3"}},
    // Far from the end of steps and of time; stopped by a loss that does not fall.
    {"lr_scheduler.horizon",
     {metrics},
     "lr_scheduler.type=linear | training.max_steps=1000000000 | training.max_time=1000s | "
     "optimizer.lr=1e-30 | eval.interval=1 | eval.patience=1",
     {"lr_scheduler.horizon=time"}},
};

const std::vector<Flip> kLoop{
    {"checkpoint.interval", {files}, "", {"checkpoint.interval=1", "checkpoint.interval=1h"}},
    {"checkpoint.keep_latest",
     {files},
     "checkpoint.interval=1",
     {"checkpoint.keep_latest=2", "checkpoint.keep_latest=null"}},
    {"checkpoint.keep_every",
     {files},
     "checkpoint.interval=1 | checkpoint.keep_latest=2 | training.max_steps=6",
     {"checkpoint.keep_every=2"}},
    {"checkpoint.max_shard_size", {files}, "", {"checkpoint.max_shard_size=64KiB"}},
    {"checkpoint.max_shard_size",
     {plan, files},
     "checkpoint.async=true",
     {"checkpoint.max_shard_size=64KiB"}},
    {"checkpoint.async", {plan}, "", {"checkpoint.async=true"}},
    {"checkpoint.async_share", {plan}, "checkpoint.async=true", {"checkpoint.async_share=1"}},
    {"checkpoint.export_hf", {plan, files}, "", {"checkpoint.export_hf=true"}},
    {"checkpoint.local.directory",
     {plan, files},
     "checkpoint.interval=100",
     {"checkpoint.local.directory=fast"}},
    {"checkpoint.local.interval",  // what a run that fails in its second step leaves there
     {files},
     "checkpoint={interval: null, local: {directory: fast, interval: 1}} | optimizer.lr=1e30",
     {"checkpoint.local.interval=3"}},
    {"checkpoint.local.keep_latest",
     {plan},
     "checkpoint={interval: 100, local: {directory: fast}}",
     {"checkpoint.local.keep_latest=3"}},
    {"checkpoint.resume", {exit}, "", {"checkpoint.resume=must"}},
    {"checkpoint.resume", {exit}, "", {"checkpoint.resume=4"}},
    {"checkpoint.resume", {exit}, "", {"checkpoint.resume=never"}, {}, true},
    {"eval.interval", {metrics}, "", {"eval.interval=1", "eval.interval=null"}},
    {"eval.at_start", {metrics}, "", {"eval.at_start=true"}},
    {"eval.max_samples", {metrics}, "", {"eval.max_samples=1"}},
    {"eval.stride", {data, metrics}, "", {"eval.stride=3"}},
    {"eval.patience",
     {metrics},
     "eval.interval=1 | optimizer.lr=0",
     {"eval.patience=1", "eval.patience=2"}},
    {"eval.sample_prompts", {samples}, "", {"eval.sample_prompts=[word]"}},
    {"eval.sample_tokens",
     {samples},
     "eval.sample_prompts=[word] | eval.sample_tokens=4",
     {"eval.sample_tokens=8"}},
};

}  // namespace

std::span<const Flip> flip_table() {
  static const std::vector<Flip> rows = [] {
    std::vector<Flip> all;
    for (const auto* part : {&kRun, &kParallelism, &kData, &kTraining, &kSchedule, &kLoop}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    for (const std::span<const Flip> part :
         {model_flips(), optimizer_flips(), cleaning_flips(), job_flips(), bad_step_flips(),
          record_flips(), precision_flips()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

}  // namespace llmtrain::test
