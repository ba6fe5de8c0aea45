#include "lib/train/checkpoint_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/parallel.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/engine/checkpoint_share.hpp"

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

}  // namespace

std::vector<checkpoint::TensorBox> boxes_to_save(engine::Engine& engine) {
  std::vector<checkpoint::TensorBox> boxes;
  const std::set<const Parameter*> mine = engine::written_here(engine.parameters(), engine.mesh());
  for (const Parameter* p : engine.parameters().local()) {
    if (mine.contains(p)) add_master(boxes, engine.parameters(), *p);
  }
  for (const optim::StateTensor& s : engine.states()) {
    if (s.is_first && mine.contains(s.parameter)) add_boxes(boxes, s.name, s.place, s.tensor);
  }
  return boxes;
}

namespace {

// Bytes that a thread reads at a time: the host never holds a second copy of a tensor.
constexpr std::uint64_t kReadBytes = 1 << 20;

/// Parts of tensors that are read several at a time. Memory that nobody has touched yet costs more
/// than the reading: the system clears it, as many pages at a time as threads write to it.
class Reading {
 public:
  /// Takes elements [first, ..) of the tensor's local box.
  using Write = std::function<void(std::int64_t first, std::span<const std::byte> values)>;

  /// All that `place` has of a tensor, in groups of rows.
  void add(const std::string& name, const TensorPlace& place, DType dtype, Write write) {
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
        const std::uint64_t bytes = static_cast<std::uint64_t>(box.shape[0]) * row_bytes;
        parts_.push_back({{name, dtype, dims_of(place.global_shape), std::move(box)},
                          placed.place.first + row * row_elements,
                          bytes,
                          &shared});
      }
    }
  }

  void run(checkpoint::Loader& loader, int threads) const {
    parallel_for(parts_.size(), threads, [&](std::size_t i) {
      const Part& part = parts_[i];
      stop_if_asked("loading a checkpoint");
      const auto values = std::make_unique_for_overwrite<std::byte[]>(part.bytes);
      loader.read_box(part.request, {values.get(), part.bytes});
      (*part.write)(part.first, {values.get(), part.bytes});
    });
  }

 private:
  struct Part {
    checkpoint::Loader::Request request;
    std::int64_t first;
    std::uint64_t bytes;
    const Write* write;
  };
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

bool is_saved_as(const checkpoint::Loader& loader, const Parameter& p, DType dtype) {
  const auto& tensors = loader.manifest().tensors;
  const auto at = tensors.find(p.name());
  return at != tensors.end() && at->second.dtype == dtype;
}

// What was saved without a master is bf16, which FP32 holds exactly.
void add_parameter(Reading& reading, const checkpoint::Loader& loader, ParameterStore& store,
                   const Parameter& p) {
  if (p.master_dtype() != DType::f32 || !is_saved_as(loader, p, DType::bf16)) {
    return reading.add(p.name(), held(p), p.master_dtype(),
                       [&](std::int64_t first, std::span<const std::byte> values) {
                         store.write_part(p, first, values);
                       });
  }
  reading.add(p.name(), held(p), DType::bf16,
              [&](std::int64_t first, std::span<const std::byte> values) {
                std::vector<float> wide(values.size() / sizeof(bf16));
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

void add_state(Reading& reading, const optim::StateTensor& state) {
  const Tensor flat = state.tensor.reshape({state.tensor.numel()});
  reading.add(
      state.name, state.place, flat.dtype(),
      [flat, begin = state.place.own.first](std::int64_t first, std::span<const std::byte> values) {
        const auto count = static_cast<std::int64_t>(values.size() / size_of(flat.dtype()));
        flat.device().copy_from_host(flat.columns(first - begin, count), values);
      });
}

}  // namespace

void load_tensors(checkpoint::Loader& loader, engine::Engine& engine) {
  ParameterStore& parameters = engine.parameters();
  if (loses_masters(loader, parameters)) {
    log::warning(
        "the checkpoint's FP32 parameters are rounded to bf16, because precision.master is none");
  }
  Reading reading;
  for (const Parameter* p : parameters.local()) add_parameter(reading, loader, parameters, *p);
  for (const optim::StateTensor& s : engine.states()) {
    // Those of quantized layers begin anew where a run was not in FP8 before.
    if (loader.manifest().tensors.contains(s.name)) add_state(reading, s);
  }
  reading.run(loader, reading_threads(engine));
}

void load_parameters(checkpoint::Loader& loader, engine::Engine& engine) {
  Reading reading;
  for (const Parameter* p : engine.parameters().local()) {
    add_parameter(reading, loader, engine.parameters(), *p);
  }
  reading.run(loader, reading_threads(engine));
}

}  // namespace llmtrain::train
