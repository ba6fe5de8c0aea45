#include "lib/train/checkpoint_tensors.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/engine/checkpoint_share.hpp"
#include "lib/models/parameter_names.hpp"
#include "lib/train/checkpoint_reading.hpp"

namespace llmtrain::train {

namespace {

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

// States that are in a file are read from there, in parts.
void add_state_boxes(std::vector<checkpoint::TensorBox>& boxes, const optim::StateTensor& state) {
  if (state.tensor.defined()) return add_boxes(boxes, state.name, state.place, state.tensor);
  add_boxes(boxes, state.name, state.place, state.dtype(),
            [state](std::int64_t first, std::span<std::byte> to) {
              state.read(first - state.place.own.first, to);
            });
}

// Checkpoints have whole masters, whatever form they have in memory; without any, the parameter
// itself.
void add_master(std::vector<checkpoint::TensorBox>& boxes, const ParameterStore& store,
                const Parameter& parameter) {
  if (parameter.copy_is_elsewhere() && !parameter.has_master()) {
    return add_boxes(boxes, parameter.name(), parameter.own_place(), parameter.compute_dtype(),
                     [&store, &parameter](std::int64_t first, std::span<std::byte> to) {
                       store.read_copy(parameter, first - parameter.own_slice().first, to);
                     });
  }
  const bool is_copy = !parameter.has_master() || !parameter.has_separate_copy();
  if (is_copy && !parameter.copy_is_elsewhere()) {
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

}  // namespace

std::vector<checkpoint::TensorBox> boxes_to_save(engine::Engine& engine) {
  std::vector<checkpoint::TensorBox> boxes;
  const std::set<const Parameter*> mine = engine::written_here(engine.parameters(), engine.mesh());
  for (const Parameter* p : engine.parameters().local()) {
    if (mine.contains(p)) add_master(boxes, engine.parameters(), *p);
  }
  for (const optim::StateTensor& s : engine.states()) {
    if (s.is_first && mine.contains(s.parameter)) add_state_boxes(boxes, s);
  }
  return boxes;
}

bool is_of_head(std::string_view name) {
  return name == models::kHeadName || name.starts_with(fmt::format("{}#", models::kHeadName));
}

std::string saved_name(const checkpoint::Loader& loader, const std::string& name) {
  if (!is_of_head(name)) return name;
  if (loader.manifest().tensors.contains(std::string(models::kHeadName))) return name;
  return std::string(models::kEmbeddingName) + name.substr(models::kHeadName.size());
}

namespace {

/// Type in the checkpoint of a tensor of the run; none where it has no such tensor.
std::optional<DType> saved_dtype(const checkpoint::Loader& loader, const std::string& name) {
  const auto& tensors = loader.manifest().tensors;
  const auto at = tensors.find(saved_name(loader, name));
  if (at == tensors.end()) return std::nullopt;
  return at->second.dtype;
}

/// A GPU is given one part after the other.
int reading_threads(engine::Engine& engine) {
  return engine.device().kind() == DeviceKind::cpu ? engine.context().kernel.threads : 1;
}

/// What this rank has of a parameter.
TensorPlace held(const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  if (!parameter.shards().parameters) place.own = {0, place.box.shape.numel()};
  return place;
}

/// A tensor's, if it is the host's; none else.
std::span<std::byte> host_memory(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().kind() != DeviceKind::cpu) return {};
  return {tensor.view().as<std::byte>(),
          static_cast<std::uint64_t>(tensor.numel()) * size_of(tensor.dtype())};
}

/// Of what held() says, where one tensor is all that there is of it.
std::span<std::byte> memory_of(const Parameter& parameter) {
  if (parameter.has_separate_copy()) return {};
  return host_memory(parameter.shards().parameters ? parameter.own_compute() : parameter.compute());
}

void add_parameters(CheckpointReading& reading, const checkpoint::Loader& loader,
                    ParameterStore& store) {
  for (const Parameter* p : store.local()) {
    reading.add(
        saved_name(loader, p->name()), held(*p), p->master_dtype(),
        [&store, p](std::int64_t first, std::span<const std::byte> values) {
          store.write_part(*p, first, values);
        },
        memory_of(*p));
  }
}

void add_state(CheckpointReading& reading, const checkpoint::Loader& loader,
               const optim::StateTensor& state) {
  reading.add(
      saved_name(loader, state.name), state.place, state.dtype(),
      [state](std::int64_t first, std::span<const std::byte> values) {
        state.write(first - state.place.own.first, values);
      },
      host_memory(state.tensor));
}

/// Rank 0 says what is rounded, of all ranks' tensors: those of `names` that the run has in FP32
/// and the checkpoint in FP64, and parameters without a master.
void warn_of_rounding(const checkpoint::Loader& loader, const ParameterStore& store,
                      std::span<const std::string> names) {
  if (store.mesh().rank() != 0) return;
  for (const Parameter* p : store.local()) {
    const std::optional<DType> saved = saved_dtype(loader, p->name());
    if (p->has_master() || (saved != DType::f32 && saved != DType::f64)) continue;
    log::warning(
        "the checkpoint's {} parameters are rounded to bf16, because precision.master is none",
        saved == DType::f32 ? "FP32" : "FP64");
    break;
  }
  if (store.local().empty() || store.local().front()->master_dtype() == DType::f64) return;
  const auto narrowed = std::ranges::count_if(names, [&](const std::string& name) {
    return saved_name(loader, name) == name && saved_dtype(loader, name) == DType::f64;
  });
  if (narrowed == 0) return;
  log::warning(
      "{} tensor{} of the checkpoint {} FP64 and rounded, because precision.compute is not fp64",
      narrowed, narrowed == 1 ? "" : "s", narrowed == 1 ? "is" : "are");
}

/// Without states that are FP64 whatever the recipe says: counters.
std::vector<std::string> in_types_of_recipe(const std::vector<std::string>& names,
                                            const engine::Engine& engine) {
  const auto kind_of = [](std::string_view name) {
    return std::string(name.substr(std::min(name.rfind('#'), name.size())));
  };
  std::set<std::string> always_wide;
  for (const optim::StateTensor& state : engine.states()) {
    if (state.dtype() == DType::f64) always_wide.insert(kind_of(state.name));
  }
  std::vector<std::string> chosen;
  std::ranges::copy_if(names, std::back_inserter(chosen), [&](const std::string& name) {
    return !always_wide.contains(kind_of(name));
  });
  return chosen;
}

std::vector<std::string> parameter_names(const ParameterStore& store) {
  std::vector<std::string> names;
  for (const auto& p : store.all()) names.push_back(p->name());
  return names;
}

}  // namespace

void load_tensors(checkpoint::Loader& loader, engine::Engine& engine,
                  checkpoint::Handover* handover) {
  ParameterStore& parameters = engine.parameters();
  std::vector<std::string> names = parameter_names(parameters);
  const std::vector<std::string> states = engine.state_names();
  names.insert(names.end(), states.begin(), states.end());
  warn_of_rounding(loader, parameters, in_types_of_recipe(names, engine));
  // Those of quantized layers begin anew where a run was not in FP8 before, whatever a step that is
  // given up has left in them.
  if (engine.quantized_layers() != nullptr) {
    engine.quantized_layers()->reset(engine.context().kernel);
  }
  CheckpointReading reading(loader);
  add_parameters(reading, loader, parameters);
  for (const optim::StateTensor& s : engine.states()) {
    if (saved_dtype(loader, s.name)) add_state(reading, loader, s);
  }
  reading.run(reading_threads(engine), handover);
}

void load_parameters(checkpoint::Loader& loader, engine::Engine& engine) {
  warn_of_rounding(loader, engine.parameters(), parameter_names(engine.parameters()));
  CheckpointReading reading(loader);
  add_parameters(reading, loader, engine.parameters());
  reading.run(reading_threads(engine), nullptr);
}

}  // namespace llmtrain::train
