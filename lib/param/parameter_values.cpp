/// The values of parameters: first ones, and those that checkpoints and imports write and read.

#include <algorithm>
#include <cstring>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/param/parameter.hpp"
#include "lib/tensor/split_master.hpp"

namespace llmtrain {

namespace {

// First values of elements that are logically adjacent, from logical index `first` on.
template <class T>
void set_initial_values(const Initializer& init, PhiloxKey key, std::int64_t first,
                        std::span<T> values) {
  if (init.kind != Initializer::Kind::normal) {
    std::fill(values.begin(), values.end(), T(init.kind == Initializer::Kind::ones ? 1 : 0));
    return;
  }
  PhiloxWords words{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(first) + i;
    if (i == 0 || index % 4 == 0) words = philox_block(key, 0, index);
    values[i] = static_cast<T>(init.std * normal_quantile(unit_interval(words[index % 4])));
  }
}

// Logical index of the first element of the box's row `row`.
std::int64_t logical_begin(const Box& box, const Shape& global, std::int64_t row) {
  const int rank = box.shape.rank();
  std::int64_t logical = box.offset[std::max(0, rank - 1)];
  std::int64_t stride = global.cols();
  for (int d = rank - 2; d >= 0; --d) {
    logical += (box.offset[d] + row % box.shape[d]) * stride;
    row /= box.shape[d];
    stride *= global[d];
  }
  return logical;
}

// First values of the box's elements from `first` on, in its own order.
template <class T>
void set_box_values(const Parameter& p, PhiloxKey key, std::int64_t first, std::span<T> values) {
  const std::int64_t cols = p.box().shape.cols();
  for (std::size_t done = 0; done < values.size();) {
    const std::int64_t at = first + static_cast<std::int64_t>(done);
    const std::size_t count =
        std::min(values.size() - done, static_cast<std::size_t>(cols - at % cols));
    set_initial_values(p.initializer(), key,
                       logical_begin(p.box(), p.global_shape(), at / cols) + at % cols,
                       values.subspan(done, count));
    done += count;
  }
}

// Elements that are made, rounded or joined at a time, so that the host never holds a second
// parameter; while a GPU takes some, the next are made.
constexpr std::int64_t kChunk = 1 << 18;
// Of a chunk, by one thread.
constexpr std::int64_t kPart = 1 << 13;

template <class T>
void write_initial_values(ParameterStore& store, const Parameter& p, std::uint64_t seed,
                          int threads) {
  const PhiloxKey key = philox_key(seed, "init", p.name());
  const std::int64_t elements = p.box().shape.numel();
  std::vector<T> values;
  for (std::int64_t first = 0; first < elements; first += kChunk) {
    stop_if_asked("making the first weights");
    const std::int64_t count = std::min(kChunk, elements - first);
    values.resize(static_cast<std::size_t>(count));
#pragma omp parallel for num_threads(threads) schedule(static) if (count > kPart)
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const auto size = static_cast<std::size_t>(std::min(kPart, count - begin));
      set_box_values(p, key, first + begin,
                     std::span(values).subspan(static_cast<std::size_t>(begin), size));
    }
    store.write_part(p, first, std::as_bytes(std::span(values)));
  }
}

std::size_t master_bytes(const Parameter& p) {
  return static_cast<std::size_t>(p.box().shape.numel()) * size_of(p.master_dtype());
}

// The part of elements [first, first + count) of the box that lies in the own slice.
ParameterSlice held_part(const Parameter& p, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::max(first, p.own_slice().first);
  return {begin, std::max<std::int64_t>(0, std::min(first + count, p.own_slice().end()) - begin)};
}

// `count` elements from `first` on, as one row.
Tensor part_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.reshape({tensor.numel()}).columns(first, count);
}

}  // namespace

void ParameterStore::initialize(std::uint64_t seed, int threads) {
  for (const Parameter* p : local_) {
    if (device_->is_meta()) continue;
    if (p->master_dtype() == DType::f64) {
      write_initial_values<double>(*this, *p, seed, threads);
    } else {
      write_initial_values<float>(*this, *p, seed, threads);
    }
  }
}

void ParameterStore::write(const Parameter& p, std::span<const std::byte> master_values) {
  require(master_values.size() == master_bytes(p), "{}: {} bytes given for {} of {}", p.name(),
          master_values.size(), to_string(p.box().shape), to_string(p.master_dtype()));
  write_part(p, 0, master_values);
}

namespace {

// What this rank has of the compute copy: the box, or with Shards the own slice; and where in the
// box that begins.
struct HeldCopy {
  Tensor tensor;
  std::int64_t first;
};
HeldCopy held_copy(const Parameter& p) {
  if (p.shards().parameters) return {p.own_compute(), p.own_slice().first};
  return {p.compute(), 0};
}

// Copies of FP32 masters in the type of products, and what bf16 ones lack. In vectors: one by
// one they took longer than making the first values of a large model.
void split_masters(std::span<const float> masters, DType copy_dtype,
                   std::span<std::uint16_t> copies, std::span<std::uint16_t> remainders) {
#pragma omp simd
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const MasterParts parts = split_master(masters[i]);
    copies[i] = parts.copy.bits;
    remainders[i] = parts.remainder;
  }
  if (copy_dtype != DType::f16) return;
  for (std::size_t i = 0; i < masters.size(); ++i) copies[i] = to_f16(masters[i]).bits;
}

// The floats that these bytes are: where they lie, or in `straightened` if that is at no multiple
// of four.
std::span<const float> as_floats(std::span<const std::byte> bytes,
                                 std::vector<float>& straightened) {
  const std::size_t count = bytes.size() / sizeof(float);
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0) {
    return {reinterpret_cast<const float*>(bytes.data()), count};
  }
  straightened.resize(count);
  std::memcpy(straightened.data(), bytes.data(), bytes.size());
  return straightened;
}

// Of `values`, elements [first, ..) of `size` bytes each, those of `some`.
std::span<const std::byte> bytes_of(std::span<const std::byte> values, std::int64_t first,
                                    const ParameterSlice& some, std::uint64_t size) {
  return values.subspan(static_cast<std::uint64_t>(some.first - first) * size,
                        static_cast<std::uint64_t>(some.count) * size);
}

}  // namespace

void ParameterStore::write_part(const Parameter& p, std::int64_t first,
                                std::span<const std::byte> master_values) {
  const std::uint64_t size = size_of(p.master_dtype());
  const auto count = static_cast<std::int64_t>(master_values.size() / size);
  const ParameterSlice own = held_part(p, first, count);
  const ParameterSlice copied = p.shards().parameters ? own : ParameterSlice{first, count};
  const HeldCopy copy = held_copy(p);
  if (!p.has_separate_copy()) {
    if (copied.count == 0) return;
    device_->copy_from_host(part_of(copy.tensor, copied.first - copy.first, copied.count),
                            bytes_of(master_values, first, copied, size));
    return;
  }
  if (p.master().defined() && own.count > 0) {
    device_->copy_from_host(part_of(p.master(), own.first - p.own_slice().first, own.count),
                            bytes_of(master_values, first, own, size));
  }
  require(p.master_dtype() == DType::f32 && is_half_width(p.compute_dtype()),
          "{}: no rounding from {} to {}", p.name(), to_string(p.master_dtype()),
          to_string(p.compute_dtype()));
  // Memory that is new each time, and a copy of what lies straight already, took as long as all
  // else.
  thread_local std::vector<float> straightened;
  thread_local std::vector<std::uint16_t> copies, remainders;
  for (std::int64_t begin = copied.first; begin < copied.end(); begin += kChunk) {
    const ParameterSlice chunk{begin, std::min(kChunk, copied.end() - begin)};
    const std::span<const std::byte> values = bytes_of(master_values, first, chunk, size);
    const auto masters = as_floats(values, straightened);
    copies.resize(masters.size());
    remainders.resize(masters.size());
    split_masters(masters, p.compute_dtype(), copies, remainders);
    device_->copy_from_host(part_of(copy.tensor, begin - copy.first, chunk.count),
                            std::as_bytes(std::span(copies)));
    const ParameterSlice some = held_part(p, begin, chunk.count);
    if (!p.remainder().defined() || some.count == 0) continue;
    device_->copy_from_host(
        part_of(p.remainder(), some.first - p.own_slice().first, some.count),
        bytes_of(std::as_bytes(std::span(remainders)), begin, some, sizeof(std::uint16_t)));
  }
}

std::vector<std::byte> ParameterStore::read(const Parameter& p) const {
  std::vector<std::byte> values(master_bytes(p));
  read_part(p, 0, values);
  return values;
}

void ParameterStore::read_part(const Parameter& p, std::int64_t first,
                               std::span<std::byte> master_values) const {
  const auto count = static_cast<std::int64_t>(master_values.size() / size_of(p.master_dtype()));
  if (count == 0) return;
  const bool in_copy = !p.has_master() || !p.has_separate_copy();
  require(held_part(p, first, count).count == count || (in_copy && !p.shards().parameters),
          "{}: elements {} to {} of the master are another rank's", p.name(), first, first + count);
  const HeldCopy copy = held_copy(p);
  if (!p.has_separate_copy()) {
    device_->copy_to_host(master_values, part_of(copy.tensor, first - copy.first, count));
    return;
  }
  if (p.master().defined()) {
    device_->copy_to_host(master_values, part_of(p.master(), first - p.own_slice().first, count));
    return;
  }
  std::vector<bf16> copies;
  std::vector<std::uint16_t> remainders;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    copies.resize(static_cast<std::size_t>(n));
    remainders.resize(copies.size());
    device_->copy_to_host(std::as_writable_bytes(std::span(copies)),
                          part_of(copy.tensor, first + begin - copy.first, n));
    if (p.remainder().defined()) {  // else the copy alone is the value
      device_->copy_to_host(std::as_writable_bytes(std::span(remainders)),
                            part_of(p.remainder(), first + begin - p.own_slice().first, n));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float master = join_master({copies[at], remainders[at]});
      std::memcpy(&master_values[static_cast<std::size_t>(begin + i) * sizeof(float)], &master,
                  sizeof(float));
    }
  }
}

}  // namespace llmtrain
