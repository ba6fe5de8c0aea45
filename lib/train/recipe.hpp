#pragma once
/// The whole recipe: the sections of all components, and those of the loop itself.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/job_place.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/data/sample_stream.hpp"
#include "lib/engine/engine.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/engine/sections.hpp"
#include "lib/optim/lr_schedule.hpp"
#include "lib/parallel/parallelism_section.hpp"
#include "lib/plan/recompute_budget.hpp"
#include "lib/recipe/load.hpp"
#include "lib/train/checkpoint_section.hpp"
#include "lib/train/cleaning_section.hpp"
#include "lib/train/offload_section.hpp"
#include "lib/train/profiler_section.hpp"
#include "lib/train/resilience_section.hpp"
#include "lib/train/slurm_section.hpp"

namespace llmtrain::train {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

enum class CudaGraphs : std::uint8_t { automatic, off };

struct RunSection : recipe::Section {
  recipe::Key<std::string> name{this, "name", "%recipe",
                                "name of the run; %recipe is the recipe's file name",
                                recipe::not_empty()};
  recipe::Key<std::string> output_dir{this, "output_dir", "runs/%name",
                                      "directory of checkpoints, metrics and report; %name is "
                                      "run.name",
                                      recipe::not_empty()};
  recipe::Key<std::uint64_t> seed{
      this, "seed", 42, "decides first weights, sample order and dropout", recipe::Rule{}};
  recipe::Key<DeviceChoice> device{this, "device", DeviceChoice::automatic,
                                   "where to train; auto takes a GPU where there is one",
                                   recipe::one_of<DeviceChoice>({{"auto", DeviceChoice::automatic},
                                                                 {"cpu", DeviceChoice::cpu},
                                                                 {"cuda", DeviceChoice::cuda}})};
  recipe::Key<recipe::Auto<recipe::Count>> threads{
      this,
      "threads",
      {},
      "threads of the CPU kernels; auto = cores of the machine",
      recipe::between(1, 4096)};
  recipe::Key<recipe::Auto<recipe::Bytes>> memory_limit{
      this,
      "memory_limit",
      {},
      "largest arena; auto = the machine's memory, or what a GPU has free but for 1 GiB",
      recipe::at_least(1 << 20)};
  recipe::Key<recipe::Bytes> library_workspace{
      this, "library_workspace", recipe::Bytes{32 << 20},
      "on a GPU: reserved for each product and each attention that a library computes, up to 32 "
      "times as much for a backward of attention in a fixed order; algorithms that need more are "
      "not taken",
      recipe::at_most(0x1p36)};
  recipe::Key<kernels::AttentionChoice> attention{
      this, "attention", kernels::AttentionChoice::automatic,
      "on a GPU: who computes attention in training and evaluation; auto = cuDNN, where it is "
      "there, for bf16 and fp16 without documents that hide each other; cudnn = cuDNN, for "
      "documents too, or an error; own = our kernels",
      recipe::one_of<kernels::AttentionChoice>({{"auto", kernels::AttentionChoice::automatic},
                                                {"cudnn", kernels::AttentionChoice::cudnn},
                                                {"own", kernels::AttentionChoice::own}})};
  recipe::Key<bool> tune_products{
      this, "tune_products", true,
      "on a GPU: time the library's algorithms for each product before the first step and keep the "
      "fastest; false = the library's own guess"};
  recipe::Key<std::optional<std::string>> product_cache{
      this, "product_cache", std::nullopt,
      "with tune_products: the file in which runs share what they timed; null = "
      "llmtrain/products.txt in $XDG_CACHE_HOME or ~/.cache",
      recipe::not_empty()};
  recipe::Key<kernels::Determinism> determinism{
      this, "determinism", kernels::Determinism::run,
      "what equal bits are promised for: run = the same recipe on the same machine, also when it "
      "was stopped and resumed; layout = with another parallelism.dp, pp, pp_schedule or zero, too "
      "(docs/parallelism.md says what it costs); fast = nothing on a GPU, whose libraries may then "
      "add in any order (on the CPU the same as run)",
      recipe::one_of<kernels::Determinism>({{"fast", kernels::Determinism::fast},
                                            {"run", kernels::Determinism::run},
                                            {"layout", kernels::Determinism::layout}})};
  recipe::Key<recipe::Auto<recipe::Count>> virtual_workers{
      this,
      "virtual_workers",
      {},
      "with determinism layout: parts of a step's micro-batches whose sums join by a binary tree, "
      "a "
      "power of two; parallelism.dp divides it, and results depend on it; auto = the most up to 64 "
      "that divide the micro-batches of every step",
      recipe::between(1, 1 << 16)};
  recipe::Key<CudaGraphs> cuda_graphs{
      this, "cuda_graphs", CudaGraphs::automatic,
      "on a GPU: launches of a step are recorded once and repeated as a whole, which spares the "
      "host making each; auto does so with each part of a step that can be recorded",
      recipe::one_of<CudaGraphs>({{"auto", CudaGraphs::automatic}, {"off", CudaGraphs::off}})};

  /// As far as the recipe alone says: of `auto` the CPU.
  DeviceKind named_device() const {
    return device() == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu;
  }
  void validate(recipe::Issues& issues) const override;
  /// `tune_products`, where the library makes products: what is timed decides the order of sums.
  bool tunes_products() const {
    return tune_products() && determinism() != kernels::Determinism::layout;
  }
};

struct BpeOptions : recipe::Section {
  recipe::Key<std::optional<std::string>> path{
      this, "path", std::nullopt,
      "tokenizer.json or a directory with one; null = train on the training text"};
  recipe::Key<recipe::Count> vocab_size{this, "vocab_size", 8192,
                                        "size of a vocabulary that is trained",
                                        recipe::between(257, 1 << 24)};
  recipe::Key<std::string> pattern{this, "pattern", "gpt2",
                                   "what merges of a vocabulary that is trained never cross: the "
                                   "words of gpt2 or llama3, identifiers, or only lines",
                                   recipe::any_of(data::pattern_names())};
};

struct TokenizerRow {
  std::string_view name, doc;
  std::unique_ptr<recipe::Section> (*options)();
};
std::span<const TokenizerRow> tokenizer_table();

struct TokenizerSection : recipe::Section {
  recipe::Choice<TokenizerRow> type{this, "type", tokenizer_table(), "bpe", "kind of tokenizer"};
  /// Null for `bytes`, which has no options.
  const BpeOptions* bpe() const;
};

/// Values of data.sources.*.format: auto, the texts' and those of data::token_formats().
std::vector<std::string> source_formats();

struct SourceSection : recipe::Section {
  recipe::Key<std::optional<std::string>> name{this, "name", std::nullopt,
                                               "name of the source in metrics; null = its number",
                                               recipe::not_empty()};
  recipe::Key<std::optional<double>> weight{
      this, "weight", std::nullopt,
      "share of the samples that come from this source, relative to the weights of the others, "
      "which then have one too; null = all sources are one text",
      recipe::at_least(0)};
  recipe::Key<std::optional<double>> max_epochs{
      this, "max_epochs", std::nullopt,
      "with weight: the source ends after so many passes, and the others share its part; null = "
      "never",
      recipe::above(0)};
  recipe::Required<std::string> path{
      this, "path",
      "file, directory (all its files) or pattern with * and ?; files in .gz and .zst are "
      "decompressed",
      recipe::not_empty()};
  recipe::Key<std::string> format{
      this, "format", "auto",
      "text, jsonl, tokens of another program (llmc: llm.c's .bin, megatron: Megatron-LM's .bin "
      "and "
      ".idx, read where they lie; tokenizer.path is theirs), or auto by the file's name and magic",
      recipe::any_of(source_formats())};
  recipe::Key<std::string> text_key{this, "text_key", "text", "key of the text in a line of jsonl",
                                    recipe::not_empty()};
  recipe::Key<std::optional<std::string>> prompt_key{
      this, "prompt_key", std::nullopt,
      "key of a prompt in a line of jsonl, which is read and not trained; with completion_key, "
      "instead of text_key",
      recipe::not_empty()};
  recipe::Key<std::optional<std::string>> completion_key{this, "completion_key", std::nullopt,
                                                         "key of the completion, which is trained",
                                                         recipe::not_empty()};
  recipe::Key<recipe::Auto<recipe::Bytes>> max_document_bytes{
      this,
      "max_document_bytes",
      {},
      "text files longer than this are cut into documents at line ends, 0 = never; auto = a 128th "
      "of the source, at least 1Ki and at most 16Ki, when it has fewer than 100 files, else 0",
      recipe::Rule{}};
  /// The first key that is set and speaks of text, which token files have not; null if none is.
  const recipe::Entry* text_only_key() const;
  void validate(recipe::Issues& issues) const override;
};

struct PackingSection : recipe::Section {
  recipe::Key<data::PackingStrategy> strategy{
      this, "strategy", data::PackingStrategy::wrapped,
      "wrapped: documents are joined and cut into samples; best_fit: samples hold whole documents, "
      "and only those longer than a sample are cut (the held-out text stays wrapped)",
      recipe::one_of<data::PackingStrategy>({{"wrapped", data::PackingStrategy::wrapped},
                                             {"best_fit", data::PackingStrategy::best_fit}})};
  recipe::Key<bool> cross_document_attention{this, "cross_document_attention", false,
                                             "let a token see earlier documents of its sample"};
  recipe::Key<bool> reset_positions{this, "reset_positions", true,
                                    "count positions from the start of each document"};
};

struct DataStageSection : recipe::Section {
  recipe::Required<recipe::Span> start{
      this, "start", "steps (2000), tokens (\"2B tok\") or part (\"80%\") of the run before it"};
  recipe::Required<std::vector<double>> weights{
      this, "weights", "from there on: one per source, in their order", recipe::at_least(0)};
};

struct DataSection : recipe::Section {
  recipe::List<SourceSection> sources{this, "sources", "training text"};
  recipe::List<DataStageSection> stages{this, "stages",
                                        "other weights of the sources from some place on"};
  recipe::Key<recipe::Count> eval_modulus{
      this, "eval_modulus", 20, "held out are documents whose hash of the name modulo this is ...",
      recipe::between(2, 1 << 20)};
  recipe::Key<recipe::Count> eval_remainder{this, "eval_remainder", 0,
                                            "... this; nobody chooses them", recipe::Rule{}};
  recipe::Key<std::string> cache_dir{this, "cache_dir", ".cache/llmtrain",
                                     "where trained tokenizers and token files are kept",
                                     recipe::not_empty()};
  recipe::Key<recipe::Bytes> shard_size{this, "shard_size", recipe::Bytes(data::kShardSourceBytes),
                                        "source text of a token file, about: what is held in "
                                        "memory while preparing, and what tasks of "
                                        "a job array share",
                                        recipe::between(1024, 0x1p40)};
  recipe::Key<recipe::Bytes> max_decompressed_size{
      this, "max_decompressed_size", recipe::Bytes(std::uint64_t{64} << 30),
      "a compressed file whose text is longer is refused", recipe::at_least(1)};
  recipe::Sub<CleaningSection> cleaning{
      this, "cleaning", "which training documents are left out; nothing by default"};
  recipe::Sub<PackingSection> packing{this, "packing", "how documents fill samples"};
  /// True if each source has a weight: then they are a mixture, else one text.
  bool is_mixture() const;
  std::string source_name(std::size_t source) const;
  void validate(recipe::Issues& issues) const override;

 private:
  void validate_weights(recipe::Issues& issues) const;
  void validate_stages(recipe::Issues& issues) const;
};

struct EvalSection : recipe::Section {
  recipe::Key<std::optional<recipe::Count>> interval{
      this, "interval", recipe::Count(500), "evaluate every so many steps; null = only at the end",
      recipe::at_least(1)};
  recipe::Key<bool> at_start{this, "at_start", false, "evaluate before the first step"};
  recipe::Key<std::optional<recipe::Count>> max_samples{
      this, "max_samples", std::nullopt,
      "evaluate at most so many samples during training; null = all; the last evaluation takes all",
      recipe::at_least(1)};
  recipe::Key<std::optional<recipe::Count>> stride{
      this, "stride", std::nullopt,
      "tokens that a sample of the evaluation counts; those before them are only read, so that "
      "each counted token sees at least seq_len - stride tokens of its document, where there are "
      "as "
      "many; null = seq_len",
      recipe::at_least(1)};
  recipe::Key<std::optional<recipe::Count>> patience{
      this, "patience", std::nullopt,
      "stop after so many evaluations in a row without a lower loss; null = never",
      recipe::at_least(1)};
  recipe::Key<std::vector<std::string>> sample_prompts{
      this, "sample_prompts", {}, "texts to continue at every evaluation", recipe::Rule{}};
  recipe::Key<recipe::Count> sample_tokens{
      this, "sample_tokens", 100, "length of those continuations", recipe::between(1, 1 << 20)};
};

struct MetricsSection : recipe::Section {
  recipe::Key<recipe::Count> interval{this, "interval", 10, "write a record every so many steps",
                                      recipe::at_least(1)};
  recipe::Key<std::optional<recipe::Count>> diagnostics_interval{
      this, "diagnostics_interval", std::nullopt,
      "every so many steps also record how gradients, weights and activations are distributed, how "
      "far weights move and how noisy gradients are (docs/diagnostics.md); null = never",
      recipe::at_least(1)};
  recipe::Key<bool> tensorboard{this, "tensorboard", true, "write TensorBoard event files too"};
};

struct DebugSection : recipe::Section {
  recipe::Key<bool> check_collectives{
      this, "check_collectives", false,
      "before each collective its ranks compare what they call, which is slow; the run ends where "
      "they differ, naming both"};
};

struct Recipe : recipe::Section {
  recipe::Sub<RunSection> run{this, "run", "the run and its machine"};
  recipe::Sub<models::ModelSection> model{this, "model", "shape of the model"};
  recipe::Sub<TokenizerSection> tokenizer{this, "tokenizer", "text to tokens"};
  recipe::Sub<DataSection> data{this, "data", "training and held-out text"};
  recipe::Sub<engine::TrainingSection> training{this, "training", "batch and length of the run"};
  recipe::Sub<optim::OptimizerOptions> optimizer{this, "optimizer", "update rule"};
  recipe::Sub<optim::LrSchedulerOptions> lr_scheduler{this, "lr_scheduler",
                                                      "learning rate over the run"};
  recipe::Sub<engine::PrecisionSection> precision{this, "precision", "number formats"};
  recipe::Sub<parallel::ParallelismSection> parallelism{this, "parallelism",
                                                        "layout over the ranks of a job"};
  recipe::Sub<engine::ActivationCheckpointSection> activation_checkpoint{
      this, "activation_checkpoint", "activations to compute again instead of keeping"};
  recipe::Sub<OffloadSection> offload{this, "offload", "what lives outside of the device's memory"};
  recipe::Sub<CheckpointSection> checkpoint{this, "checkpoint", "saving and resuming"};
  recipe::Sub<EvalSection> eval{this, "eval", "evaluation on the held-out text"};
  recipe::Sub<MetricsSection> metrics{this, "metrics", "what is written while training"};
  recipe::Sub<ProfilerSection> profiler{this, "profiler", "a window of steps, looked at closely"};
  recipe::Sub<ResilienceSection> resilience{this, "resilience", "what to do when things go wrong"};
  recipe::Sub<SlurmSection> slurm{this, "slurm",
                                  "the job that `llmtrain slurm` asks a cluster for"};
  recipe::Sub<DebugSection> debug{this, "debug", "checks that take their time"};

  /// The processes among which this one runs the recipe, which no key says: alone, unless whoever
  /// loaded the recipe knows better and calls enter(), which also gives an axis of parallelism that
  /// takes the rest of the ranks its size. RefusedValue when there is none; InvalidRecipe with all
  /// that these ranks could not share.
  JobPlace job;
  void enter(const JobPlace& place);

  void validate(recipe::Issues& issues) const override;
  /// Rules over the length of the run.
  void validate_length(recipe::Issues& issues) const;
  void validate_export(recipe::Issues& issues) const;
  void validate_horizon(recipe::Issues& issues) const;
  /// Rules between `offload` and other sections.
  void validate_offload(recipe::Issues& issues) const;
  void validate_files_of(const MeshShape& mesh, recipe::Issues& issues) const;
  /// Rules between the layout and other sections.
  void validate_layout(recipe::Issues& issues) const;
  void validate_virtual_workers(recipe::Issues& issues) const;
  void validate_grad_reduce(recipe::Issues& issues) const;
  void validate_same_bits(recipe::Issues& issues) const;
  /// RefusedValue for a stage of the data that begins nowhere.
  void validate_stages() const;
  /// Rules over what each rank of the job would have: samples, and parts of the model.
  void validate_on_ranks(recipe::Issues& issues) const;
  engine::EngineOptions engine_options() const;
  /// What activation_checkpoint.budget leads to on the ranks of the job; null without a budget, and
  /// where the layout does not fit them. InvalidRecipe for a budget that nothing keeps to.
  const plan::BudgetedRecompute* budgeted_recompute() const;
  /// For which a pipeline with these options orders its actions: parallelism.pp_costs, or FLOP.
  /// Equal where the order does not depend on costs, or the layout is open.
  parallel::ActionCosts stage_costs(const engine::EngineOptions& options) const;
  /// engine::EngineOptions::virtual_workers.
  int virtual_workers() const;
  /// On the ranks of the job. RefusedValue when the layout does not fit them.
  MeshShape mesh_shape() const { return parallelism.shape(job.size); }
  /// On the same. RefusedValue when they cannot share the samples of every step.
  engine::BatchGeometry geometry() const;
  /// Of the CPU's kernels: run.threads, or this process's share of the machine's cores.
  int threads() const;
  /// Tokens that a sample of the evaluation counts, at most seq_len.
  std::int64_t eval_stride() const;

 private:
  /// But for what a budget leads to.
  engine::EngineOptions options_without_budget() const;
  bool has_entered_ = false;
  mutable std::optional<plan::BudgetedRecompute> budgeted_;  // of the job, once somebody asked
};

/// Sections and keys of components that this build does not have.
std::span<const recipe::Reserved> reserved_keys();

/// Text of a recipe compiled into the executable, or nothing.
std::optional<std::string> builtin_recipe(std::string_view name);
std::vector<std::string_view> builtin_recipe_names();

/// Loads `file` (a path or a built-in name); RecipeError with all issues.
std::unique_ptr<Recipe> load_recipe(const std::filesystem::path& file,
                                    const std::vector<std::string>& overrides);

/// run.name and run.output_dir with their placeholders replaced.
std::string run_name(const Recipe& recipe, const std::filesystem::path& file);
std::filesystem::path output_dir(const Recipe& recipe, const std::filesystem::path& file);

}  // namespace llmtrain::train
