#include "lib/train/recipe.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>
#include <thread>
#include <unistd.h>

#include "lib/data/token_format.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/recipe/judge_value.hpp"
#include "lib/tensor/device.hpp"
#include "lib/train/data_stages.hpp"

namespace llmtrain::train {

std::span<const TokenizerRow> tokenizer_table() {
  static constexpr std::array kRows{
      TokenizerRow{"bytes", "every byte is a token: a vocabulary of 257", nullptr},
      TokenizerRow{"bpe", "BPE, read from a file or trained on the training text",
                   &recipe::section_of<BpeOptions>}};
  return kRows;
}

const BpeOptions* TokenizerSection::bpe() const {
  return type().name == "bpe" ? &type.as<BpeOptions>() : nullptr;
}

void RunSection::validate(recipe::Issues& issues) const {
  if (name().find('/') != std::string::npos || name() == "." || name() == "..") {
    issues.add(name, "is the name of one directory", "put directories into run.output_dir");
  }
  if (attention() == kernels::AttentionChoice::cudnn && device() == DeviceChoice::cpu) {
    issues.add(attention, "is for a GPU, and run.device is cpu",
               "leave it out, or choose run.device: cuda");
  }
  if (attention() == kernels::AttentionChoice::cudnn &&
      determinism() == kernels::Determinism::layout) {
    issues.add(attention,
               "cuDNN chooses its kernels itself, run.determinism: layout by fixed rules",
               "leave it out, or choose run.determinism: run");
  }
  if (!virtual_workers().value) return;
  if (determinism() != kernels::Determinism::layout) {
    issues.add(virtual_workers, "does nothing without run.determinism: layout", "leave it out");
  } else if (const std::uint64_t workers = *virtual_workers().value;
             !std::has_single_bit(workers)) {
    issues.add(virtual_workers, fmt::format("{} is no power of two", workers),
               fmt::format("{} and {} are", std::bit_floor(workers), std::bit_ceil(workers)));
  }
}

std::vector<std::string> source_formats() {
  std::vector<std::string> names{"auto", "text", "jsonl"};
  for (const data::TokenFormat& row : data::token_formats()) names.emplace_back(row.name);
  return names;
}

const recipe::Entry* SourceSection::text_only_key() const {
  if (text_key.is_set()) return &text_key;
  if (prompt_key.is_set()) return &prompt_key;
  if (completion_key.is_set()) return &completion_key;
  return max_document_bytes.is_set() ? &max_document_bytes : nullptr;
}

void SourceSection::validate(recipe::Issues& issues) const {
  if (data::find_token_format(format()) != nullptr) {
    if (const recipe::Entry* key = text_only_key()) {
      issues.add(*key, fmt::format("does nothing: files of {} hold tokens, no text", format()),
                 "leave it out");
    }
    return;
  }
  if (prompt_key().has_value() != completion_key().has_value()) {
    issues.add(prompt_key() ? prompt_key : completion_key,
               fmt::format("goes with {}", prompt_key() ? "completion_key" : "prompt_key"),
               "give both, or text_key alone");
    return;
  }
  if (!prompt_key()) return;
  constexpr std::string_view kProblem = "does nothing beside prompt_key and completion_key";
  if (text_key.is_set()) issues.add(text_key, std::string(kProblem), "leave it out");
  if (max_document_bytes.is_set()) {
    issues.add(max_document_bytes, std::string(kProblem), "leave it out");
  }
  if (format() == "text") issues.add(format, "has no prompts", "format: jsonl");
  if (*prompt_key() == *completion_key()) issues.add(completion_key, "is prompt_key too");
}

bool DataSection::is_mixture() const {
  return sources.size() > 0 && sources[0].weight().has_value();
}

std::string DataSection::source_name(std::size_t source) const {
  return sources[source].name().value_or(std::to_string(source));
}

void DataSection::validate(recipe::Issues& issues) const {
  if (sources.size() == 0) {
    issues.add(sources, "no training text", "give at least one source: [{path: my.txt}]");
  }
  if (eval_remainder() >= eval_modulus()) {
    issues.add(eval_remainder, fmt::format("must be below eval_modulus {}", eval_modulus().value));
  }
  recipe::judge(issues, [&] { validate_weights(issues); });
  recipe::judge(issues, [&] { validate_stages(issues); });
}

void DataSection::validate_weights(recipe::Issues& issues) const {
  std::set<std::string> names;
  double sum = 0;
  std::size_t weighted = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const SourceSection& source = sources[i];
    weighted += source.weight().has_value() ? 1 : 0;
    sum += source.weight().value_or(0);
    if (!names.insert(source_name(i)).second) {
      issues.add(source.name, fmt::format("'{}' is the name of two sources", source_name(i)));
    }
    if (source_name(i).find('/') != std::string::npos) {
      issues.add(source.name, "is part of the names of metrics and has no /");
    }
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const SourceSection& source = sources[i];
    if (weighted > 0 && !source.weight()) {
      issues.add(source.weight, "missing: other sources have one", "give every source a weight");
    }
    constexpr std::string_view kProblem = "does nothing without a weight";
    if (!source.weight() && source.max_epochs())
      issues.add(source.max_epochs, std::string(kProblem));
    if (!source.weight() && source.name()) issues.add(source.name, std::string(kProblem));
  }
  if (weighted == 1 && sources.size() == 1) {
    issues.add(sources[0].weight, "there is no other source to weigh against", "leave it out");
  } else if (weighted == sources.size() && weighted > 0 && sum <= 0) {
    issues.add(sources[0].weight, "no source has a weight above 0");
  }
}

void DataSection::validate_stages(recipe::Issues& issues) const {
  if (stages.size() > 0 && !is_mixture()) {
    issues.add(stages, "the sources have no weights", "give each a weight for the first stage");
    return;
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::vector<double>& weights = stages[i].weights();
    if (weights.size() != sources.size()) {
      issues.add(stages[i].weights,
                 fmt::format("{} weights for {} sources", weights.size(), sources.size()));
    } else if (std::accumulate(weights.begin(), weights.end(), 0.0) <= 0) {
      issues.add(stages[i].weights, "no weight is above 0");
    }
  }
}

void Recipe::validate(recipe::Issues& issues) const {
  // A refused key spares only the rules that read it.
  const auto& shape =
      dynamic_cast<const models::CommonModelOptions&>(*model.architecture.section());
  recipe::judge(issues, [&] {
    if (training.seq_len() <= shape.longest_sequence()) return;
    const std::uint64_t trained = shape.max_position_embeddings();
    issues.add(training.seq_len,
               fmt::format("longer than model.max_position_embeddings {}{}", trained,
                           trained < shape.longest_sequence() ? " x rope_scaling.factor" : ""));
  });
  recipe::judge(issues, [&] { shape.validate_sequences(issues, training.seq_len().value); });
  recipe::judge(issues, [&] {
    if (!eval.stride() || eval.stride()->value <= training.seq_len()) return;
    issues.add(eval.stride,
               fmt::format("longer than training.seq_len {}", training.seq_len().value));
  });
  recipe::judge(issues, [&] {
    const std::uint64_t vocab = shape.vocab_size();
    const BpeOptions* bpe = tokenizer.bpe();
    if (bpe == nullptr && vocab < 257) {
      issues.add(model.architecture,
                 fmt::format("vocab_size {} is below the 257 tokens of the byte tokenizer", vocab));
    }
    if (bpe != nullptr && !bpe->path() && bpe->vocab_size() > vocab) {
      issues.add(bpe->vocab_size, fmt::format("larger than model.vocab_size {}", vocab));
    }
  });
  recipe::judge(issues, [&] {
    if (!resilience.goes_back() || checkpoint.interval() || checkpoint.local.directory()) return;
    issues.add(checkpoint.interval, "null leaves resilience's rollback nothing to go back to",
               "save every so many steps");
  });
  recipe::judge(issues, [&] { validate_export(issues); });
  recipe::judge(issues, [&] {
    if (!training.num_epochs() || !data.is_mixture()) return;
    issues.add(training.num_epochs, "a mixture of weighted sources has no epochs",
               "give max_steps or max_tokens, and the sources max_epochs");
  });
  recipe::judge(issues, [&] {
    const std::vector<std::string>& again = activation_checkpoint.ops();
    if (!precision.quantization() || std::ranges::find(again, "up_proj") == again.end()) return;
    issues.add(activation_checkpoint.ops,
               "up_proj with compute fp8: scales follow what a product was given, once",
               "leave it out, or set activation_checkpoint.mode: full");
  });
  recipe::judge(issues, [&] {
    if (!precision.tf32() || run.device() != DeviceChoice::cpu) return;
    issues.add(precision.tf32, "products on the CPU are fp32", "leave it out, or run.device: cuda");
  });
  recipe::judge(issues, [&] {
    if (!optimizer.name().cpu_only || run.device() != DeviceChoice::cuda) return;
    issues.add(optimizer.name, fmt::format("{} is for the CPU", optimizer.name().name),
               "choose another optimizer, or run.device: cpu");
  });
  recipe::judge(issues, [&] {
    const bool narrow = optimizer.state_dtype() == optim::StateType::bf16;
    if (!narrow || precision.compute() != DType::f64) return;
    issues.add(optimizer.state_dtype, "bf16 is for masters of FP32, and those of fp64 are FP64",
               "leave it out, or change precision.compute");
  });
  validate_offload(issues);
  recipe::judge(issues, [&] {
    const auto margin = resilience.exit_margin().value;
    if (!margin || !slurm.time() || margin->seconds < slurm.time()->seconds) return;
    issues.add(resilience.exit_margin, "is not shorter than slurm.time: no job would make a step");
  });
  validate_layout(issues);
  recipe::judge_value(issues, *this, [&] { validate_length(issues); });
  recipe::judge(issues, [&] { validate_horizon(issues); });
  recipe::judge_value(issues, *this, [&] { validate_stages(); });
  if (has_entered_) validate_on_ranks(issues);
}

// Before the data, not at the first save.
void Recipe::validate_export(recipe::Issues& issues) const {
  if (!checkpoint.export_hf()) return;
  try {
    model.architecture().hf_config(model.spec(), {});
  } catch (const RecipeError& error) {
    issues.add(checkpoint.export_hf, error.what(), "leave it out, or change the model");
  }
}

// Over time a step may stand for many of the schedule's, so that what counts steps or tokens would
// come at another time than it says. Optional numbers of a schedule are per step.
void Recipe::validate_horizon(recipe::Issues& issues) const {
  if (lr_scheduler.horizon() != optim::LrHorizon::time) return;
  if (!training.max_time()) {
    issues.add(lr_scheduler.horizon, "the run has no training.max_time", "set it");
  }
  constexpr std::string_view kProblem = "does not stretch with lr_scheduler.horizon: time";
  const auto judge_entry = [&](const recipe::Entry& entry) {
    using recipe::Key;
    if (const auto* span = dynamic_cast<const Key<recipe::Span>*>(&entry)) {
      const recipe::Span& value = (*span)();
      if (value.unit == recipe::Span::Unit::percent || value.count == 0) return;
      issues.add(entry, fmt::format("{} {}", span->value_text(), kProblem), "give it in percent");
    }
    const auto* count = dynamic_cast<const Key<std::optional<recipe::Count>>*>(&entry);
    const auto* number = dynamic_cast<const Key<std::optional<double>>*>(&entry);
    if ((count != nullptr && (*count)()) || (number != nullptr && (*number)())) {
      issues.add(entry, fmt::format("is per step and {}", kProblem), "leave it out");
    }
  };
  for (const recipe::Entry* entry : lr_scheduler.entries()) judge_entry(*entry);
  if (const recipe::Section* own = lr_scheduler.type.section()) {
    for (const recipe::Entry* entry : own->entries()) judge_entry(*entry);
  }
}

namespace {

int lengths_given(const engine::TrainingSection& training) {
  return training.max_steps().has_value() + training.max_tokens().has_value() +
         training.num_epochs().has_value();
}

double step_tokens(const engine::TrainingSection& training) {
  return static_cast<double>(training.global_batch_size().value) *
         static_cast<double>(training.seq_len().value);
}

bool is_too_long(const engine::TrainingSection& training) {
  const auto max_steps = training.max_steps();
  return max_steps && static_cast<double>(max_steps->value) * step_tokens(training) > 0x1p60;
}

}  // namespace

void Recipe::validate_length(recipe::Issues& issues) const {
  if (lengths_given(training) != 1) return;  // an issue of its own
  if (is_too_long(training)) {
    issues.add(training.max_steps, fmt::format("{} steps of {} tokens are more than 2^60 tokens",
                                               training.max_steps()->value, step_tokens(training)));
    return;
  }
  const engine::BatchGeometry geometry(training);
  const std::optional<std::int64_t> steps = geometry.total_steps(training);
  if (!steps) return;  // only the data knows
  optim::LrSchedule(lr_scheduler,
                    {*steps, [&](std::int64_t step) { return geometry.tokens_before(step); }});
}

void Recipe::validate_stages() const {
  const bool length_is_known =
      lengths_given(training) == 1 && !training.num_epochs() && !is_too_long(training);
  if (!data.is_mixture() || !length_is_known) return;  // issues of their own
  stage_starts(*this);
}

engine::EngineOptions Recipe::engine_options() const {
  engine::EngineOptions options = options_without_budget();
  if (const auto* budgeted = budgeted_recompute()) options.recompute = budgeted->policy;
  return options;
}

engine::EngineOptions Recipe::options_without_budget() const {
  engine::EngineOptions options = engine::EngineOptions::from(
      model, training, precision, activation_checkpoint, optimizer, run.seed());
  options.virtual_workers = virtual_workers();
  options.records_launches = run.cuda_graphs() == CudaGraphs::automatic;
  options.zero = static_cast<int>(parallelism.zero());
  options.pipeline = {.schedule = parallelism.pp_schedule(),
                      .stages_per_rank = parallelism.stages_per_rank(),
                      .layers = parallelism.stage_blocks(options.model.num_hidden_layers)};
  options.offload = offload.settings();
  options.offloaded_activations = offload.of_activations();
  options.diagnostics = metrics.diagnostics_interval().has_value();
  options.one_document = data.packing.cross_document_attention();
  options.pipeline.costs = stage_costs(options);
  return options;
}

std::int64_t Recipe::eval_stride() const {
  const std::uint64_t stride = eval.stride() ? eval.stride()->value : training.seq_len().value;
  return static_cast<std::int64_t>(stride);
}

int Recipe::threads() const {
  if (run.threads().value) return static_cast<int>(run.threads().value->value);
  // A launcher that binds its processes to cores has already divided them.
  const unsigned usable = std::max(1u, std::thread::hardware_concurrency());
  const auto all = static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const auto sharers = static_cast<unsigned>(usable < all ? 1 : job.local_size);
  return static_cast<int>(std::max(1u, usable / sharers));
}

std::span<const recipe::Reserved> reserved_keys() {
  static constexpr std::array kRows{
      recipe::Reserved{"peft", "this build trains all parameters"},
      recipe::Reserved{"method", "this build pre-trains only"},
      recipe::Reserved{"model.moe",
                       "experts are keys of the families that have them: "
                       "model.architecture: mixtral, qwen3_moe or dots1"},
  };
  return kRows;
}

std::unique_ptr<Recipe> load_recipe(const std::filesystem::path& file,
                                    const std::vector<std::string>& overrides) {
  auto recipe = std::make_unique<Recipe>();
  recipe::load(*recipe, {.file = file,
                         .overrides = overrides,
                         .builtin = builtin_recipe,
                         .reserved = reserved_keys()});
  return recipe;
}

namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

}  // namespace

std::string run_name(const Recipe& recipe, const std::filesystem::path& file) {
  return replaced(recipe.run.name(), "%recipe", file.stem().string());
}

std::filesystem::path output_dir(const Recipe& recipe, const std::filesystem::path& file) {
  return replaced(recipe.run.output_dir(), "%name", run_name(recipe, file));
}

}  // namespace llmtrain::train
