#include "lib/train/checkpointing.hpp"

#include <algorithm>
#include <bit>
#include <set>

#include <fmt/ranges.h>

#include "lib/base/log.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/models/parameter_names.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/train/checkpoint_tensors.hpp"

namespace llmtrain::train {

namespace {

constexpr std::string_view kProductChoicesKey = "run.product_choices";
constexpr std::string_view kLossScaleKey = "optimizer.loss_scale";
constexpr std::string_view kGoodStepsKey = "optimizer.good_steps";

constexpr std::string_view kRecentLossesKey = "loop.recent_losses";
// Of local checkpoints alone: a durable one was saved when it was saved.
constexpr const char* kDurableSecondsKey = "loop.durable_seconds";

std::string to_lines(const std::vector<StepRecord>& records) {
  std::string lines;
  for (const StepRecord& record : records) lines += to_line(record) + '\n';
  return lines;
}

}  // namespace

checkpoint::StoreOptions store_options(const CheckpointSection& section) {
  checkpoint::StoreOptions options;
  options.max_shard_bytes = section.max_shard_size();
  if (section.keep_latest()) options.keep_last = section.keep_latest()->value;
  options.keep_every = section.keep_every();
  options.background_share = section.async_share();
  return options;
}

checkpoint::RunState run_state(engine::Engine& engine, const LoopState& state,
                               const RunIdentity& identity) {
  checkpoint::RunState run;
  run.tokens_seen = state.trained_tokens;
  run.schedule_position = static_cast<std::uint64_t>(state.step);
  run.rng_seed = identity.seed;
  run.data_cursor = {.epoch = state.next_sample / identity.epoch_size,
                     .index = state.next_sample % identity.epoch_size,
                     .fingerprint = identity.data_fingerprint};
  const optim::UpdateProgress progress = engine.optimizer()->progress();
  run.state["optimizer.steps_taken"] = progress.steps_taken;
  if (engine.optimizer()->loss_scaling()) {
    run.state[std::string(kLossScaleKey)] = static_cast<std::int64_t>(progress.loss_scale);
    run.state[std::string(kGoodStepsKey)] = progress.good_steps;
  }
  run.state["loop.skipped_steps"] = state.skipped_steps;
  run.state["loop.skipped_in_a_row"] = state.skipped_in_a_row;
  run.state["loop.best_eval_loss"] = checkpoint::scalar_of(state.best_eval_loss);
  run.state["loop.evals_without_progress"] = state.evals_without_progress;
  run.state["loop.elapsed_seconds"] = checkpoint::scalar_of(state.elapsed_seconds);
  if (state.durable_seconds != state.elapsed_seconds) {
    run.state[kDurableSecondsKey] = checkpoint::scalar_of(state.durable_seconds);
  }
  run.state[std::string(kRecordsKey)] = to_lines(state.records);
  if (!state.recent_losses.empty()) {
    run.state[std::string(kRecentLossesKey)] = state.recent_losses.text();
  }
  if (!identity.product_choices.empty()) {
    run.state[std::string(kProductChoicesKey)] = identity.product_choices;
  }
  run.environment = identity.environment;
  run.recipe = identity.recipe;
  return run;
}

namespace {

std::int64_t integer_at(const checkpoint::RunState& run, const std::string& key) {
  const auto found = run.state.find(key);
  require<CheckpointError>(
      found != run.state.end() && std::holds_alternative<std::int64_t>(found->second),
      "the checkpoint has no integer {}", key);
  return std::get<std::int64_t>(found->second);
}

/// Of a run that had no scale the optimizer's first one counts: its type has changed to fp16.
optim::UpdateProgress progress_of(const checkpoint::RunState& run,
                                  const optim::OptimizerSet& optimizer) {
  optim::UpdateProgress progress = optimizer.first_progress();
  progress.steps_taken = integer_at(run, "optimizer.steps_taken");
  if (!optimizer.loss_scaling() || !run.state.contains(std::string(kLossScaleKey))) return progress;
  const std::int64_t scale = integer_at(run, std::string(kLossScaleKey));
  progress.good_steps = integer_at(run, std::string(kGoodStepsKey));
  require<CheckpointError>(scale >= 1 && std::has_single_bit(static_cast<std::uint64_t>(scale)) &&
                               progress.good_steps >= 0,
                           "the checkpoint has a loss scale of {}, for {} steps", scale,
                           progress.good_steps);
  progress.loss_scale = static_cast<double>(scale);
  return progress;
}

std::vector<StepRecord> records_of(const checkpoint::RunState& run, std::int64_t step) {
  const auto found = run.state.find(std::string(kRecordsKey));
  const bool text = found != run.state.end() && std::holds_alternative<std::string>(found->second);
  require<CheckpointError>(text, "the checkpoint has no text {}", kRecordsKey);
  std::vector<StepRecord> records =
      parse_metrics(std::get<std::string>(found->second), kRecordsKey);
  for (const StepRecord& record : records) {
    require<CheckpointError>(record.step <= step, "{}: a record of step {} in step {}", kRecordsKey,
                             record.step, step);
  }
  return records;
}

RecentLosses recent_losses_of(const checkpoint::RunState& run) {
  const auto found = run.state.find(std::string(kRecentLossesKey));
  if (found == run.state.end()) return {};
  const auto* const text = std::get_if<std::string>(&found->second);
  require<CheckpointError>(text != nullptr, "the checkpoint's {} is no text", kRecentLossesKey);
  return RecentLosses::parse(*text, kRecentLossesKey);
}

/// A run may go on in FP8, or with other layers in FP8, whose scales begin anew, or leave it: then
/// nobody reads what the checkpoint has.
void add_quantizer_names(const checkpoint::Loader& loader, const engine::Engine& engine,
                         std::vector<std::string>& expected) {
  std::set<std::string> saved, mine;
  for (const auto& [name, record] : loader.manifest().tensors) {
    if (name.find("#fp8_") != std::string::npos) saved.insert(name);
  }
  if (engine.quantized_layers() != nullptr) {
    const std::vector<std::string> names = engine.quantized_layers()->state_names();
    mine.insert(names.begin(), names.end());
  }
  const auto count_without = [](const std::set<std::string>& of,
                                const std::set<std::string>& others) {
    return std::ranges::count_if(of, [&](const auto& name) { return !others.contains(name); });
  };
  if (mine.empty() && !saved.empty()) {
    log::info("the checkpoint's FP8 scales are not used: this run has none");
  } else if (saved.empty() && !mine.empty()) {
    log::info("the checkpoint has no FP8 scales: they begin anew");
  } else if (saved != mine) {
    log::info(
        "other layers are in FP8 than before: {} of their {} scales begin anew, {} of the "
        "checkpoint are not used",
        count_without(mine, saved), mine.size(), count_without(saved, mine));
  }
  expected.insert(expected.end(), saved.begin(), saved.end());
}

/// How model and optimizer changed between two recipes: "; optimizer.name: adamw -> sgd". Empty
/// where one of them is another version's.
std::string changes_of_tensors(const std::string& then_text, const std::string& now_text) {
  Recipe then, now;
  const bool readable =
      recipe::check(then, {.file = "the checkpoint's recipe", .text = then_text}).empty() &&
      recipe::check(now, {.file = "the recipe", .text = now_text}).empty();
  if (!readable) return "";
  std::vector<std::string> changes = recipe::changed_values(then, now);
  std::erase_if(changes, [](const std::string& change) {
    return !change.starts_with("model.") && !change.starts_with("optimizer.");
  });
  constexpr std::size_t kShown = 3;
  if (changes.size() > kShown) {
    changes[kShown] = fmt::format("{} more", changes.size() - kShown);
    changes.resize(kShown + 1);
  }
  return changes.empty() ? "" : fmt::format("; {}", fmt::join(changes, ", "));
}

/// `expected`: names of the run's tensors, of which the head's may be the embedding's there.
void check_names(const checkpoint::Loader& loader, const std::vector<std::string>& expected,
                 const RunIdentity& identity) {
  std::set<std::string> names;
  for (const std::string& name : expected) names.insert(saved_name(loader, name));
  const checkpoint::NameDifference difference =
      loader.compare(std::vector(names.begin(), names.end()));
  const bool loses_head = difference.missing.empty() && !difference.unexpected.empty() &&
                          difference.unexpected.front() == models::kHeadName &&
                          std::ranges::all_of(difference.unexpected, is_of_head);
  require<CheckpointError>(
      !loses_head,
      "the checkpoint has a head of its own ({}), and model.tie_word_embeddings is true, which "
      "would lose one of two tables; set it to false, or begin a new run (another run.output_dir) "
      "with model.init_from",
      models::kHeadName);
  if (!difference.missing.empty() || !difference.unexpected.empty()) {
    const auto count = [](const std::vector<std::string>& names, std::string_view what) {
      const std::string first = names.empty() ? "" : " (" + names.front() + " ...)";
      return fmt::format("{} {}{}", names.size(), what, first);
    };
    fail<CheckpointError>(
        "the checkpoint is of another model or optimizer: {}, {}{}; set the recipe back, or begin "
        "a new run (another run.output_dir) with model.init_from",
        count(difference.missing, "tensors missing"), count(difference.unexpected, "unexpected"),
        changes_of_tensors(loader.manifest().run.recipe, identity.recipe));
  }
  const bool unties = std::ranges::any_of(
      expected, [&](const std::string& name) { return saved_name(loader, name) != name; });
  if (!unties) return;
  log::info(
      "the checkpoint has no head of its own: {} begins with the values and optimizer states of {}",
      models::kHeadName, models::kEmbeddingName);
}

}  // namespace

LoopState load_checkpoint(const checkpoint::CheckpointStore& store, std::uint64_t step,
                          engine::Engine& engine, const RunIdentity& identity,
                          checkpoint::Handover* handover) {
  checkpoint::Loader loader = store.load(step);
  const checkpoint::RunState& run = loader.manifest().run;
  require<CheckpointError>(run.rng_seed == identity.seed,
                           "the checkpoint was made with run.seed {}, the recipe says {}",
                           run.rng_seed, identity.seed);
  require<CheckpointError>(
      run.data_cursor.fingerprint == identity.data_fingerprint,
      "the training data, their packing, the tokenizer or where data.stages begin is not what step "
      "{} was trained on; use the same, or another run.output_dir",
      step);
  std::vector<std::string> expected;
  for (const auto& p : engine.parameters().all()) expected.push_back(p->name());
  const std::vector<std::string> states = engine.optimizer()->state_names();
  expected.insert(expected.end(), states.begin(), states.end());
  add_quantizer_names(loader, engine, expected);
  check_names(loader, expected, identity);

  try {
    load_tensors(loader, engine, handover);
  } catch (const checkpoint::ShapeDiffers& error) {
    fail<CheckpointError>("{}{}; set the recipe back, or begin a new run (another run.output_dir)",
                          error.what(), changes_of_tensors(run.recipe, identity.recipe));
  }
  engine.optimizer()->set_progress(progress_of(run, *engine.optimizer()));
  LoopState state;
  state.step = static_cast<std::int64_t>(run.schedule_position);
  state.next_sample = run.data_cursor.epoch * identity.epoch_size + run.data_cursor.index;
  state.trained_tokens = run.tokens_seen;
  state.skipped_steps = integer_at(run, "loop.skipped_steps");
  state.skipped_in_a_row = integer_at(run, "loop.skipped_in_a_row");
  state.best_eval_loss = checkpoint::double_at(run.state, "loop.best_eval_loss");
  state.evals_without_progress = integer_at(run, "loop.evals_without_progress");
  state.elapsed_seconds = checkpoint::double_at(run.state, "loop.elapsed_seconds");
  state.durable_seconds = run.state.contains(kDurableSecondsKey)
                              ? checkpoint::double_at(run.state, kDurableSecondsKey)
                              : state.elapsed_seconds;
  state.records = records_of(run, state.step);
  state.recent_losses = recent_losses_of(run);
  return state;
}

std::string saved_product_choices(const checkpoint::CheckpointStore& store, std::uint64_t step) {
  checkpoint::Loader loader = store.load(step);
  const auto& state = loader.manifest().run.state;
  const auto found = state.find(std::string(kProductChoicesKey));
  if (found == state.end()) return "";
  require<CheckpointError>(std::holds_alternative<std::string>(found->second),
                           "the checkpoint's {} is no text", kProductChoicesKey);
  return std::get<std::string>(found->second);
}

namespace {

/// False for a recipe of another version of this program.
bool read_saved_recipe(const checkpoint::CheckpointStore& store, std::uint64_t step,
                       Recipe& recipe) {
  const std::string text = store.load(step).manifest().run.recipe;
  return recipe::check(recipe, {.file = "the checkpoint's recipe", .text = text}).empty();
}

/// "model.num_attention_heads is 4 there and 2 in the recipe"; empty where both are one function.
/// What shows in the shapes of tensors is not looked at, nor what people change as they go on.
std::string other_function(const models::DecoderSpec& then, const models::DecoderSpec& now) {
  if (then.hidden_size != now.hidden_size || then.norm.kind != now.norm.kind) return "";
  std::vector<std::string> parts;
  const auto compare = [&](std::string_view key, const auto& a, const auto& b) {
    if (a != b)
      parts.push_back(fmt::format("model.{} is {} there and {} in the recipe", key, a, b));
  };
  compare("num_attention_heads", then.num_attention_heads, now.num_attention_heads);
  if (parts.empty()) {  // else they only follow
    compare("num_key_value_heads", then.num_key_value_heads, now.num_key_value_heads);
    compare("head_dim", then.head_dim, now.head_dim);
  }
  compare("num_experts_per_tok", then.experts.rule.top_k, now.experts.rule.top_k);
  compare("norm_topk_prob", then.experts.rule.normalize, now.experts.rule.normalize);
  const bool layer_norm = then.norm.kind == kernels::NormKind::layer_norm;
  compare(layer_norm ? "layer_norm_epsilon" : "rms_norm_eps", then.norm.eps, now.norm.eps);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

void check_same_function(const checkpoint::CheckpointStore& store, std::uint64_t step,
                         const Recipe& now) {
  Recipe then;
  if (!read_saved_recipe(store, step, then)) return;  // log_changed_keys() says it
  const std::string difference = other_function(then.model.spec(), now.model.spec());
  require<CheckpointError>(
      difference.empty(),
      "the checkpoint of step {} is of another model: {}, so that its tensors would compute "
      "something else; set the recipe back, or begin a new run (another run.output_dir) with "
      "model.init_from",
      step, difference);
}

void check_same_batches(const checkpoint::CheckpointStore& store, std::uint64_t step,
                        const Recipe& now) {
  const auto tokens = now.training.max_tokens();
  Recipe then;
  if ((!tokens && !now.training.num_epochs()) || !read_saved_recipe(store, step, then)) return;
  const engine::BatchGeometry before(then.training), after(now.training);
  const auto next = static_cast<std::int64_t>(step) + 1;
  const std::uint64_t taken = before.samples_before(next), counted = after.samples_before(next);
  if (taken == counted) return;
  std::string remedy = "set training.max_steps in its place";
  if (tokens) {
    const std::uint64_t length = now.training.seq_len().value, full = after.global_batch_size();
    const std::uint64_t samples = (tokens->value + length - 1) / length;
    const std::uint64_t left = (samples - std::min(samples, taken) + full - 1) / full;
    remedy = fmt::format("set training.max_steps: {} in its place, which takes them", step + left);
  }
  throw RefusedKey(
      tokens ? "training.max_tokens" : "training.num_epochs",
      fmt::format("the {} steps so far took {} samples, with the batches of this recipe "
                  "they would have taken {}: what is left of a length in {} cannot be "
                  "counted in steps",
                  step, taken, counted, tokens ? "tokens" : "epochs"),
      remedy + ", or go on with the batches as they were");
}

namespace {

/// What an earlier recipe has kept for good is deleted for no change of a number without a word.
void warn_of_archived(const checkpoint::CheckpointStore& store, const CheckpointSection& then,
                      const CheckpointSection& now) {
  const std::uint64_t before = then.keep_every(), after = now.keep_every();
  if (before == 0 || before == after || !now.keep_latest()) return;
  std::vector<std::uint64_t> steps = store.list();
  std::erase_if(steps, [&](std::uint64_t step) {
    return step % before != 0 || (after != 0 && step % after == 0);
  });
  if (steps.empty()) return;
  log::warning(
      "checkpoint.keep_every was {}, which kept steps {} for good: from now on saves delete them, "
      "as checkpoint.keep_latest says; copy their directories from {}, or set the key back",
      before, fmt::join(steps, ", "), store.root().string());
}

}  // namespace

void log_changed_keys(const checkpoint::CheckpointStore& store, std::uint64_t step,
                      const Recipe& now) {
  Recipe then;
  if (!read_saved_recipe(store, step, then)) {
    log::warning(
        "the checkpoint's recipe is of another version of this program: it is not compared with "
        "this run's");
    return;
  }
  for (const std::string& change : recipe::changed_values(then, now)) {
    log::info("changed since then: {}", change);
  }
  warn_of_archived(store, then.checkpoint, now.checkpoint);
}

}  // namespace llmtrain::train
