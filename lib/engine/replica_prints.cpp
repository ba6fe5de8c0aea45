#include "lib/engine/replica_prints.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "lib/base/activity.hpp"
#include "lib/base/hash.hpp"

namespace llmtrain::engine {

namespace {

/// Of `numel` values that `read(first, to)` gives.
template <class Read>
std::uint64_t content_of(std::int64_t numel, DType dtype, const Read& read) {
  constexpr std::uint64_t kPartBytes = 4 << 20;
  const std::int64_t part = static_cast<std::int64_t>(kPartBytes / size_of(dtype));
  std::vector<std::byte> bytes;
  std::uint64_t hash = 0;
  for (std::int64_t first = 0; first < numel; first += part) {
    const std::int64_t count = std::min(part, numel - first);
    bytes.resize(static_cast<std::size_t>(count) * size_of(dtype));
    read(first, std::span(bytes));
    hash = hash64(bytes, hash);
    activity::tick();
  }
  return hash;
}

std::uint64_t content_of(const Tensor& tensor) {
  const Tensor flat = tensor.reshape({tensor.numel()});
  return content_of(flat.numel(), flat.dtype(), [&](std::int64_t first, std::span<std::byte> to) {
    const auto count = static_cast<std::int64_t>(to.size() / size_of(flat.dtype()));
    flat.device().copy_to_host(to, flat.columns(first, count));
  });
}

class Prints {
 public:
  void add(std::string_view kind, std::string name, const TensorPlace& of, const Tensor& tensor) {
    if (of.own.count > 0) add(kind, std::move(name), of, content_of(tensor));
  }
  void add(std::string_view kind, std::string name, const TensorPlace& of, std::uint64_t content) {
    const ParameterSlice& part = of.own;
    Hasher128 place;
    place.update(name);
    place.update(kind);
    for (const std::int64_t at : of.box.offset) place.update_value(at);
    for (const std::int64_t size : of.box.shape.dims()) place.update_value(size);
    place.update_value(part.first);
    place.update_value(part.count);
    const bool sliced = part.count != of.box.shape.numel();
    prints_.push_back({.name = std::move(name),
                       .place = place.digest().low,
                       .content = content,
                       .copy = kind == kCopy && !sliced,
                       .whole = part.count == of.global_shape.numel()});
  }
  static constexpr std::string_view kCopy = "copy";
  std::vector<ReplicaPrint> take() { return std::move(prints_); }

 private:
  std::vector<ReplicaPrint> prints_;
};

/// Whether another rank may have what this one has of a parameter. What nobody else has is not read
/// from a file to be compared with nothing.
bool has_others(const Mesh& mesh, const Parameter& p) {
  const bool of_stages = mesh.size(Axis::pp) > 1 && p.holders().size() != 1;
  const int data = p.is_sliced() ? mesh.replicas().size() : mesh.data().size();
  return data > 1 || mesh.size(Axis::tp) > 1 || of_stages;
}

}  // namespace

std::vector<ReplicaPrint> replica_prints(Engine& engine) {
  Prints prints;
  const Mesh& mesh = engine.mesh();
  for (const Parameter* p : engine.parameters().local()) {
    TensorPlace copied = p->own_place();
    const bool divided = p->shards().parameters;
    if (!divided) copied.own = {0, p->box().shape.numel()};
    const bool is_read = p->own_slice().count > 0 && has_others(mesh, *p);
    if (p->copy_is_elsewhere() && is_read) {
      const auto read = [&](std::int64_t first, std::span<std::byte> to) {
        engine.parameters().read_copy(*p, first, to);
      };
      prints.add(Prints::kCopy, p->name(), copied,
                 content_of(p->own_slice().count, p->compute_dtype(), read));
    } else if (!p->copy_is_elsewhere()) {
      prints.add(Prints::kCopy, p->name(), copied, divided ? p->own_compute() : p->compute());
    }
    if (p->has_separate_copy() && p->master().defined()) {
      prints.add("master", p->name(), p->own_place(), p->master());
    }
    if (p->remainder().defined()) {
      prints.add("remainder", p->name(), p->own_place(), p->remainder());
    }
    if (p->master_is_elsewhere() && is_read) {
      const auto read = [&](std::int64_t first, std::span<std::byte> to) {
        engine.parameters().read_part(*p, p->own_slice().first + first, to);
      };
      prints.add("master", p->name(), p->own_place(),
                 content_of(p->own_slice().count, p->master_dtype(), read));
    }
  }
  for (const optim::StateTensor& state : engine.states()) {
    const bool in_file = !state.tensor.defined();
    if (state.place.own.count == 0 || (in_file && !has_others(mesh, *state.parameter))) continue;
    const auto read = [&](std::int64_t first, std::span<std::byte> to) { state.read(first, to); };
    prints.add("state", state.name, state.place,
               content_of(state.place.own.count, state.dtype(), read));
  }
  return prints.take();
}

}  // namespace llmtrain::engine
