#include "lib/train/checkpoint_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/parallel.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/engine/checkpoint_share.hpp"
#include "lib/models/parameter_names.hpp"

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

// Bytes that a thread reads at a time: the host never holds a second copy of a tensor.
constexpr std::uint64_t kReadBytes = 4 << 20;

/// Type in the checkpoint of a tensor of the run; none where it has no such tensor.
std::optional<DType> saved_dtype(const checkpoint::Loader& loader, const std::string& name) {
  const auto& tensors = loader.manifest().tensors;
  const auto at = tensors.find(saved_name(loader, name));
  if (at == tensors.end()) return std::nullopt;
  return at->second.dtype;
}

template <class From, class To>
void convert(std::span<const std::byte> from, std::span<std::byte> to) {
  for (std::size_t i = 0; i < to.size() / sizeof(To); ++i) {
    From value;
    std::memcpy(&value, &from[i * sizeof(From)], sizeof(From));
    To result;
    if constexpr (std::is_same_v<From, bf16>) {
      result = to_float(value);
    } else if constexpr (std::is_same_v<To, bf16>) {
      result = to_bf16(static_cast<float>(value));
    } else {
      result = static_cast<To>(value);  // to nearest, ties to even, where it narrows
    }
    std::memcpy(&to[i * sizeof(To)], &result, sizeof(To));
  }
}

using Conversion = void (*)(std::span<const std::byte> from, std::span<std::byte> to);

/// How values of type `saved` become `wanted`; nullptr where they do not. What was saved without a
/// master, and states of bf16, are bf16; where these are wanted now, FP64 is rounded to FP32, the
/// type of what is written to parameters, and that to bf16. Codes of 8-bit states are no numbers,
/// and become none.
Conversion conversion(DType saved, DType wanted) {
  if (saved == DType::bf16 && wanted == DType::f32) return convert<bf16, float>;
  if (saved == DType::bf16 && wanted == DType::f64) return convert<bf16, double>;
  if (saved == DType::f32 && wanted == DType::f64) return convert<float, double>;
  if (saved == DType::f64 && wanted == DType::f32) return convert<double, float>;
  if (saved == DType::f32 && wanted == DType::bf16) return convert<float, bf16>;
  if (saved == DType::f64 && wanted == DType::bf16) return convert<double, bf16>;
  return nullptr;
}

/// Parts of tensors that are read several at a time. Memory that nobody has touched yet costs more
/// than the reading: the system clears it, as many pages at a time as threads write to it.
class Reading {
 public:
  /// Takes elements [first, ..) of the tensor's local box.
  using Write = std::function<void(std::int64_t first, std::span<const std::byte> values)>;

  explicit Reading(checkpoint::Loader& loader) : loader_(loader) {}

  /// All that `place` has of a tensor, in groups of rows. `write` is given it in type `wanted`,
  /// whatever floating type the checkpoint has it in. Where the host may write to `memory`, which
  /// has just these values, what needs no conversion is read to there, and `write` not asked.
  void add(const std::string& name, const TensorPlace& place, DType wanted, Write write,
           std::span<std::byte> memory) {
    const DType saved = saved_dtype(loader_, name).value_or(wanted);
    const Conversion converted = conversion(saved, wanted);
    const DType dtype = converted != nullptr ? saved : wanted;  // else the loader refuses it
    const std::string in_checkpoint = saved_name(loader_, name);
    const Write& shared = writes_.emplace_back(std::move(write));
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
        const auto elements = static_cast<std::uint64_t>(box.shape[0] * row_elements);
        const std::int64_t first = placed.place.first + row * row_elements;
        const std::uint64_t saved_bytes = elements * size_of(dtype);
        const auto in_memory =
            static_cast<std::uint64_t>(first - place.own.first) * size_of(wanted);
        const bool as_it_is = converted == nullptr && !memory.empty();
        parts_.push_back({{in_checkpoint, dtype, dims_of(place.global_shape), std::move(box)},
                          first,
                          saved_bytes,
                          elements * size_of(wanted),
                          converted,
                          &shared,
                          as_it_is ? memory.subspan(in_memory, saved_bytes) : memory.first(0)});
      }
    }
  }

  void run(int threads) const {
    parallel_for(parts_.size(), threads, [&](std::size_t i) {
      const Part& part = parts_[i];
      stop_if_asked("loading a checkpoint");
      if (!part.memory.empty()) return loader_.read_box(part.request, part.memory);
      const auto saved = std::make_unique_for_overwrite<std::byte[]>(part.saved_bytes);
      loader_.read_box(part.request, {saved.get(), part.saved_bytes});
      if (part.conversion == nullptr) {
        return (*part.write)(part.first, {saved.get(), part.saved_bytes});
      }
      const auto wanted = std::make_unique_for_overwrite<std::byte[]>(part.wanted_bytes);
      part.conversion({saved.get(), part.saved_bytes}, {wanted.get(), part.wanted_bytes});
      (*part.write)(part.first, {wanted.get(), part.wanted_bytes});
    });
  }

 private:
  struct Part {
    checkpoint::Loader::Request request;
    std::int64_t first;
    std::uint64_t saved_bytes, wanted_bytes;
    Conversion conversion;
    const Write* write;
    std::span<std::byte> memory;  // where its bytes go as they are, if anywhere
  };
  checkpoint::Loader& loader_;
  std::deque<Write> writes_;  // which stay where they are
  std::vector<Part> parts_;
};

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

void add_parameters(Reading& reading, ParameterStore& store) {
  for (const Parameter* p : store.local()) {
    reading.add(
        p->name(), held(*p), p->master_dtype(),
        [&store, p](std::int64_t first, std::span<const std::byte> values) {
          store.write_part(*p, first, values);
        },
        memory_of(*p));
  }
}

void add_state(Reading& reading, const optim::StateTensor& state) {
  reading.add(
      state.name, state.place, state.dtype(),
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

std::vector<std::string> parameter_names(const ParameterStore& store) {
  std::vector<std::string> names;
  for (const auto& p : store.all()) names.push_back(p->name());
  return names;
}

}  // namespace

void load_tensors(checkpoint::Loader& loader, engine::Engine& engine) {
  ParameterStore& parameters = engine.parameters();
  std::vector<std::string> names = parameter_names(parameters);
  const std::vector<std::string> states = engine.state_names();
  names.insert(names.end(), states.begin(), states.end());
  warn_of_rounding(loader, parameters, names);
  // Those of quantized layers begin anew where a run was not in FP8 before, whatever a step that is
  // given up has left in them.
  if (engine.quantized_layers() != nullptr) {
    engine.quantized_layers()->reset(engine.context().kernel);
  }
  Reading reading(loader);
  add_parameters(reading, parameters);
  for (const optim::StateTensor& s : engine.states()) {
    if (saved_dtype(loader, s.name)) add_state(reading, s);
  }
  reading.run(reading_threads(engine));
}

void load_parameters(checkpoint::Loader& loader, engine::Engine& engine) {
  warn_of_rounding(loader, engine.parameters(), parameter_names(engine.parameters()));
  Reading reading(loader);
  add_parameters(reading, engine.parameters());
  reading.run(reading_threads(engine));
}

}  // namespace llmtrain::train
