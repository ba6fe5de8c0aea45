#include "lib/train/checkpointing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/checkpoint_share.hpp"
#include "lib/recipe/keys.hpp"

namespace llmtrain::train {

namespace {

checkpoint::Dims dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

// A slice of a tensor's local box as boxes of the logical tensor, each with the place of its
// elements in the local box.
struct PlacedBox {
  checkpoint::Box box;
  ParameterSlice place;
};

std::vector<PlacedBox> boxes_of(const TensorPlace& place) {
  std::vector<PlacedBox> placed;
  std::int64_t first = place.own.first;
  for (checkpoint::Box& box :
       checkpoint::boxes_of_range(dims_of(place.box.shape), place.own.first, place.own.end())) {
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < box.shape.size(); ++d) {
      elements *= box.shape[d];
      box.offset[d] += place.box.offset[d];
    }
    placed.push_back({std::move(box), {first, elements}});
    first += elements;
  }
  return placed;
}

/// Bytes of elements [first, first + bytes / size) of the local box.
using Read = std::function<void(std::int64_t first, std::span<std::byte> to)>;

/// Boxes of what this rank has of a tensor, read by `read`.
void add_boxes(std::vector<checkpoint::TensorBox>& boxes, const std::string& name,
               const TensorPlace& place, DType dtype, const Read& read) {
  for (PlacedBox& placed : boxes_of(place)) {
    boxes.push_back({.name = name,
                     .dtype = dtype,
                     .global_shape = dims_of(place.global_shape),
                     .box = std::move(placed.box),
                     .bytes = {},
                     .fetch = [read, dtype, begin = placed.place.first](std::uint64_t offset,
                                                                        std::span<std::byte> to) {
                       read(begin + static_cast<std::int64_t>(offset / size_of(dtype)), to);
                     }});
  }
}

// The same of a tensor that holds just that. On the CPU its bytes are read where they lie, from
// other devices in parts.
void add_boxes(std::vector<checkpoint::TensorBox>& boxes, const std::string& name,
               const TensorPlace& place, const Tensor& tensor) {
  const std::size_t added = boxes.size();
  const std::int64_t begin = place.own.first;
  const Tensor flat = tensor.reshape({tensor.numel()});
  add_boxes(boxes, name, place, tensor.dtype(),
            [flat, begin](std::int64_t first, std::span<std::byte> to) {
              const auto count = static_cast<std::int64_t>(to.size() / size_of(flat.dtype()));
              flat.device().copy_to_host(to, flat.columns(first - begin, count));
            });
  if (tensor.device().kind() != DeviceKind::cpu) return;
  const std::byte* bytes = tensor.view().as<const std::byte>();
  for (std::size_t i = added; i < boxes.size(); ++i) {
    const std::uint64_t size =
        static_cast<std::uint64_t>(*checkpoint::num_elements(boxes[i].box.shape)) *
        size_of(tensor.dtype());
    boxes[i].bytes = {bytes, size};
    boxes[i].fetch = {};
    bytes += size;
  }
}

// Checkpoints have whole masters, whatever form they have in memory; without any, the parameter
// itself.
void add_master(std::vector<checkpoint::TensorBox>& boxes, const ParameterStore& store,
                const Parameter& parameter) {
  if (!parameter.has_master() || !parameter.has_separate_copy()) {
    return add_boxes(boxes, parameter.name(), parameter.own_place(), parameter.own_compute());
  }
  if (parameter.master().defined()) {
    return add_boxes(boxes, parameter.name(), parameter.own_place(), parameter.master());
  }
  add_boxes(boxes, parameter.name(), parameter.own_place(), parameter.master_dtype(),
            [&store, &parameter](std::int64_t first, std::span<std::byte> to) {
              store.read_part(parameter, first, to);
            });
}

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

std::vector<checkpoint::TensorBox> boxes_to_save(engine::Engine& engine) {
  std::vector<checkpoint::TensorBox> boxes;
  const std::set<const Parameter*> mine = engine::written_here(engine.parameters(), engine.mesh());
  for (const Parameter* p : engine.parameters().local()) {
    if (mine.contains(p)) add_master(boxes, engine.parameters(), *p);
  }
  for (const optim::StateTensor& s : engine.optimizer()->states()) {
    if (s.is_first && mine.contains(s.parameter)) add_boxes(boxes, s.name, s.place, s.tensor);
  }
  return boxes;
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
    require<CheckpointError>(record.step == step, "{}: a record of step {} in step {}", kRecordsKey,
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

void check_names(const checkpoint::Loader& loader, const std::vector<std::string>& expected) {
  const checkpoint::NameDifference difference = loader.compare(expected);
  require<CheckpointError>(
      difference.missing.empty() && difference.unexpected.empty(),
      "the checkpoint is of another model or optimizer: {} tensors missing{}, {} unexpected{}",
      difference.missing.size(),
      difference.missing.empty() ? "" : " (" + difference.missing.front() + " ...)",
      difference.unexpected.size(),
      difference.unexpected.empty() ? "" : " (" + difference.unexpected.front() + " ...)");
}

// Bytes that are read at a time: the host never holds a second copy of a tensor.
constexpr std::uint64_t kReadBytes = 1 << 20;

// Reads elements of a tensor's local box in groups of rows; write(first_element, values).
template <class Write>
void read_in_parts(checkpoint::Loader& loader, const std::string& name, const TensorPlace& place,
                   DType dtype, const Write& write) {
  std::vector<std::byte> values;
  for (const PlacedBox& placed : boxes_of(place)) {
    const std::int64_t all_rows = placed.box.shape[0];
    const std::int64_t row_elements = placed.place.count / all_rows;
    const std::uint64_t row_bytes = static_cast<std::uint64_t>(row_elements) * size_of(dtype);
    const auto rows_at_a_time =
        static_cast<std::int64_t>(std::max<std::uint64_t>(1, kReadBytes / row_bytes));
    for (std::int64_t row = 0; row < all_rows; row += rows_at_a_time) {
      checkpoint::Box box = placed.box;
      box.offset[0] += row;
      box.shape[0] = std::min(rows_at_a_time, all_rows - row);
      values.resize(static_cast<std::size_t>(box.shape[0]) * row_bytes);
      loader.read_box({.name = name,
                       .dtype = dtype,
                       .global_shape = dims_of(place.global_shape),
                       .box = std::move(box)},
                      values);
      write(placed.place.first + row * row_elements, std::span<const std::byte>(values));
    }
  }
}

/// What this rank has of a parameter.
TensorPlace held(const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  if (!parameter.shards().parameters) place.own = {0, place.box.shape.numel()};
  return place;
}

bool is_saved_as(const checkpoint::Loader& loader, const Parameter& p, DType dtype) {
  const auto& tensors = loader.manifest().tensors;
  const auto at = tensors.find(p.name());
  return at != tensors.end() && at->second.dtype == dtype;
}

// What was saved without a master is bf16, which FP32 holds exactly.
void read_parameter(checkpoint::Loader& loader, ParameterStore& store, const Parameter& p) {
  if (p.master_dtype() != DType::f32 || !is_saved_as(loader, p, DType::bf16)) {
    return read_in_parts(loader, p.name(), held(p), p.master_dtype(),
                         [&](std::int64_t first, std::span<const std::byte> values) {
                           store.write_part(p, first, values);
                         });
  }
  std::vector<float> wide;
  read_in_parts(loader, p.name(), held(p), DType::bf16,
                [&](std::int64_t first, std::span<const std::byte> values) {
                  wide.resize(values.size() / sizeof(bf16));
                  for (std::size_t i = 0; i < wide.size(); ++i) {
                    bf16 narrow;
                    std::memcpy(&narrow, &values[i * sizeof(bf16)], sizeof(bf16));
                    wide[i] = to_float(narrow);
                  }
                  store.write_part(p, first, std::as_bytes(std::span(wide)));
                });
}

// Parameters of this run have no masters, and the checkpoint does.
bool loses_masters(const checkpoint::Loader& loader, const ParameterStore& store) {
  return std::ranges::any_of(store.local(), [&](const Parameter* p) {
    return !p->has_master() && is_saved_as(loader, *p, p->master_dtype());
  });
}

void read_state(checkpoint::Loader& loader, const optim::StateTensor& state) {
  const Tensor flat = state.tensor.reshape({state.tensor.numel()});
  read_in_parts(
      loader, state.name, state.place, flat.dtype(),
      [&](std::int64_t first, std::span<const std::byte> values) {
        const auto count = static_cast<std::int64_t>(values.size() / size_of(flat.dtype()));
        flat.device().copy_from_host(flat.columns(first - state.place.own.first, count), values);
      });
}

}  // namespace

LoopState load_checkpoint(const checkpoint::CheckpointStore& store, std::uint64_t step,
                          engine::Engine& engine, const RunIdentity& identity) {
  checkpoint::Loader loader = store.load(step);
  const checkpoint::RunState& run = loader.manifest().run;
  require<CheckpointError>(run.rng_seed == identity.seed,
                           "the checkpoint was made with run.seed {}, the recipe says {}",
                           run.rng_seed, identity.seed);
  require<CheckpointError>(
      run.data_cursor.fingerprint == identity.data_fingerprint,
      "the training data, tokenizer or packing is not what step {} was trained "
      "on; use the same, or another run.output_dir",
      step);
  std::vector<std::string> expected;
  for (const auto& p : engine.parameters().all()) expected.push_back(p->name());
  const std::vector<std::string> states = engine.optimizer()->state_names();
  expected.insert(expected.end(), states.begin(), states.end());
  check_names(loader, expected);

  if (loses_masters(loader, engine.parameters())) {
    log::warning(
        "the checkpoint's FP32 parameters are rounded to bf16, because precision.master is none");
  }
  for (const Parameter* p : engine.parameters().local()) {
    read_parameter(loader, engine.parameters(), *p);
  }
  for (const optim::StateTensor& s : engine.optimizer()->states()) read_state(loader, s);
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

void log_changed_keys(const checkpoint::CheckpointStore& store, std::uint64_t step,
                      const Recipe& now) {
  Recipe then;
  const std::string text = store.load(step).manifest().run.recipe;
  if (!recipe::check(then, {.file = "the checkpoint's recipe", .text = text}).empty()) {
    log::warning(
        "the checkpoint's recipe is of another version of this program: it is not compared with "
        "this run's");
    return;
  }
  for (const std::string& change : recipe::changed_values(then, now)) {
    log::info("changed since then: {}", change);
  }
}

void load_parameters(const checkpoint::CheckpointStore& store, std::uint64_t step,
                     ParameterStore& parameters) {
  checkpoint::Loader loader = store.load(step);
  for (const Parameter* p : parameters.local()) read_parameter(loader, parameters, *p);
}

}  // namespace llmtrain::train
