/// The values of parameters: first ones, and those that checkpoints and imports write and read.

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

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
  constexpr std::size_t kBlock = 512;
  std::uint32_t words[kBlock];
  double normal[kBlock];
  for (std::size_t done = 0; done < values.size();) {
    const std::uint64_t index = static_cast<std::uint64_t>(first) + done;
    const std::size_t count = std::min(kBlock - index % 4, values.size() - done);
    philox_words(key, 0, index, std::span(words, count));
    normal_quantiles(std::span(words, count), std::span(normal, count));
    for (std::size_t i = 0; i < count; ++i) {
      values[done + i] = static_cast<T>(init.std * normal[i]);
    }
    done += count;
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
// parameter; while the device is given some, the next are made.
constexpr std::int64_t kChunk = 1 << 18;
// Of a chunk, by one thread at a time.
constexpr std::int64_t kPart = 1 << 12;

std::size_t master_bytes(const Parameter& p) {
  return static_cast<std::size_t>(p.box().shape.numel()) * size_of(p.master_dtype());
}

// The part of elements [first, first + count) of the box that lies in the own slice.
ParameterSlice own_part(const Parameter& p, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::max(first, p.own_slice().first);
  return {begin, std::max<std::int64_t>(0, std::min(first + count, p.own_slice().end()) - begin)};
}

// `count` elements from `first` on, as one row.
Tensor part_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.reshape({tensor.numel()}).columns(first, count);
}

// What this rank has of the compute copy, unless it is elsewhere: the box, or with Shards the own
// slice; and where in the box that begins.
struct HeldCopy {
  Tensor tensor;
  std::int64_t first;
};
HeldCopy held_copy(const Parameter& p) {
  if (p.shards().parameters) return {p.own_compute(), p.own_slice().first};
  return {p.compute(), 0};
}

// The part of elements [first, first + count) of the box that lies in that.
ParameterSlice held_part(const Parameter& p, std::int64_t first, std::int64_t count) {
  return p.shards().parameters ? own_part(p, first, count) : ParameterSlice{first, count};
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

// Elements of a box as they lie on the host: their masters and, where a copy lies apart, both that
// and the remainders.
struct HostValues {
  ParameterSlice slice;
  std::span<const std::byte> masters;
  std::span<const std::uint16_t> copies, remainders;
};

// Where a store's values are.
struct Home {
  const Device& device;
  const ValuesElsewhere* elsewhere;  // what is not on the device
};

// Gives the device, and what else is a home, what this rank holds of them.
void hand_over(const Home& home, const Parameter& p, const HostValues& values) {
  const std::int64_t first = values.slice.first;
  const ParameterSlice own = own_part(p, first, values.slice.count),
                       held = held_part(p, first, values.slice.count);
  const auto give = [&](const Tensor& to, std::int64_t to_first, const ParameterSlice& some,
                        std::span<const std::byte> bytes) {
    if (!to.defined() || some.count == 0) return;
    home.device.copy_from_host(part_of(to, some.first - to_first, some.count),
                               bytes_of(bytes, first, some, size_of(to.dtype())));
  };
  const auto send = [&](Kept what, DType dtype, std::span<const std::byte> bytes) {
    if (own.count == 0) return;
    home.elsewhere->write_kept(p, what, own.first - p.own_slice().first,
                               bytes_of(bytes, first, own, size_of(dtype)));
  };
  const auto give_copy = [&](std::span<const std::byte> bytes) {
    if (p.copy_is_elsewhere()) return send(Kept::copy, p.compute_dtype(), bytes);
    const HeldCopy copy = held_copy(p);
    give(copy.tensor, copy.first, held, bytes);
  };
  if (!p.has_separate_copy()) return give_copy(values.masters);
  give(p.master(), p.own_slice().first, own, values.masters);
  give_copy(std::as_bytes(values.copies));
  give(p.remainder(), p.own_slice().first, own, std::as_bytes(values.remainders));
  if (!p.master_is_elsewhere()) return;
  const bool whole = p.master_form() == MasterForm::whole;
  send(Kept::master, p.kept_master_dtype(),
       whole ? values.masters : std::as_bytes(values.remainders));
}

void require_rounding(const Parameter& p) {
  require(p.master_dtype() == DType::f32 && is_half_width(p.compute_dtype()),
          "{}: no rounding from {} to {}", p.name(), to_string(p.master_dtype()),
          to_string(p.compute_dtype()));
}

// First values, as many as are made at a time.
template <class T>
struct FirstValues {
  ParameterSlice slice;
  std::vector<T> masters;
  std::vector<std::uint16_t> copies, remainders;

  void resize(const ParameterSlice& some) {
    slice = some;
    masters.resize(static_cast<std::size_t>(some.count));
    copies.resize(masters.size());
    remainders.resize(masters.size());
  }
  // Of the slice, `count` from `begin` on. Parts are made by several threads.
  void make(const Parameter& p, PhiloxKey key, std::size_t begin, std::size_t count) {
    const auto made = std::span(masters).subspan(begin, count);
    set_box_values(p, key, slice.first + static_cast<std::int64_t>(begin), made);
    if constexpr (std::is_same_v<T, float>) {
      if (!p.has_separate_copy()) return;
      split_masters(made, p.compute_dtype(), std::span(copies).subspan(begin, count),
                    std::span(remainders).subspan(begin, count));
    }
  }
  HostValues view() const { return {slice, std::as_bytes(std::span(masters)), copies, remainders}; }
};

// While this thread hands over some, the others make the next, and then it too.
template <class T>
void write_initial_values(const Home& home, const Parameter& p, std::uint64_t seed, int threads,
                          std::array<FirstValues<T>, 2>& turns) {
  if (p.has_separate_copy()) require_rounding(p);
  const PhiloxKey key = philox_key(seed, "init", p.name());
  const ParameterSlice held = held_part(p, 0, p.box().shape.numel());
  FirstValues<T>*made = &turns[0], *next = &turns[1];
  made->resize({held.first, 0});
  do {
    stop_if_asked("making the first weights");
    const std::int64_t first = made->slice.end();
    next->resize({first, std::min(kChunk, held.end() - first)});
    std::exception_ptr error;
#pragma omp parallel num_threads(threads) if (next->slice.count > kPart)
    {
#pragma omp master
      try {
        hand_over(home, p, made->view());
      } catch (...) {
        error = std::current_exception();
      }
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t begin = 0; begin < next->slice.count; begin += kPart) {
        next->make(p, key, static_cast<std::size_t>(begin),
                   static_cast<std::size_t>(std::min(kPart, next->slice.count - begin)));
      }
    }
    if (error) std::rethrow_exception(error);
    std::swap(made, next);
  } while (made->slice.count > 0);
}

}  // namespace

void ParameterStore::initialize(std::uint64_t seed, int threads) {
  if (device_->is_meta()) return;
  std::array<FirstValues<float>, 2> floats;
  std::array<FirstValues<double>, 2> doubles;
  const Home home{*device_, elsewhere_};
  for (const Parameter* p : local_) {
    if (p->master_dtype() == DType::f64) {
      write_initial_values(home, *p, seed, threads, doubles);
    } else {
      write_initial_values(home, *p, seed, threads, floats);
    }
  }
}

void ParameterStore::write(const Parameter& p, std::span<const std::byte> master_values) {
  require(master_values.size() == master_bytes(p), "{}: {} bytes given for {} of {}", p.name(),
          master_values.size(), to_string(p.box().shape), to_string(p.master_dtype()));
  write_part(p, 0, master_values);
}

void ParameterStore::write_part(const Parameter& p, std::int64_t first,
                                std::span<const std::byte> master_values) {
  const std::uint64_t size = size_of(p.master_dtype());
  const auto count = static_cast<std::int64_t>(master_values.size() / size);
  const Home home{*device_, elsewhere_};
  if (!p.has_separate_copy()) {
    hand_over(home, p, {{first, count}, master_values, {}, {}});
    return;
  }
  require_rounding(p);
  // Memory that is new each time, and a copy of what lies straight already, took as long as all
  // else.
  thread_local std::vector<float> straightened;
  thread_local std::vector<std::uint16_t> copies, remainders;
  const ParameterSlice held = held_part(p, first, count);
  for (std::int64_t begin = held.first; begin < held.end(); begin += kChunk) {
    const ParameterSlice chunk{begin, std::min(kChunk, held.end() - begin)};
    const std::span<const std::byte> values = bytes_of(master_values, first, chunk, size);
    const auto masters = as_floats(values, straightened);
    copies.resize(masters.size());
    remainders.resize(masters.size());
    split_masters(masters, p.compute_dtype(), copies, remainders);
    hand_over(home, p, {chunk, values, copies, remainders});
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
  require(own_part(p, first, count).count == count || (in_copy && !p.shards().parameters),
          "{}: elements {} to {} of the master are another rank's", p.name(), first, first + count);
  // Elements [begin, ..) of the box.
  const auto copy_to = [&](std::int64_t begin, std::span<std::byte> to) {
    if (p.copy_is_elsewhere()) {
      return elsewhere_->read_kept(p, Kept::copy, begin - p.own_slice().first, to);
    }
    const HeldCopy copy = held_copy(p);
    const auto n = static_cast<std::int64_t>(to.size() / size_of(p.compute_dtype()));
    device_->copy_to_host(to, part_of(copy.tensor, begin - copy.first, n));
  };
  if (!p.has_separate_copy()) return copy_to(first, master_values);
  if (p.master().defined()) {
    device_->copy_to_host(master_values, part_of(p.master(), first - p.own_slice().first, count));
    return;
  }
  if (p.master_is_elsewhere() && p.master_form() == MasterForm::whole) {
    return elsewhere_->read_kept(p, Kept::master, first - p.own_slice().first, master_values);
  }
  std::vector<bf16> copies;
  std::vector<std::uint16_t> remainders;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    copies.resize(static_cast<std::size_t>(n));
    remainders.resize(copies.size());
    copy_to(first + begin, std::as_writable_bytes(std::span(copies)));
    const std::int64_t in_slice = first + begin - p.own_slice().first;
    const auto kept = std::as_writable_bytes(std::span(remainders));
    if (p.remainder().defined()) {
      device_->copy_to_host(kept, part_of(p.remainder(), in_slice, n));
    } else if (p.master_is_elsewhere()) {
      elsewhere_->read_kept(p, Kept::master, in_slice, kept);
    }  // else the copy alone is the value
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float master = join_master({copies[at], remainders[at]});
      std::memcpy(&master_values[static_cast<std::size_t>(begin + i) * sizeof(float)], &master,
                  sizeof(float));
    }
  }
}

void ParameterStore::read_copy(const Parameter& p, std::int64_t first,
                               std::span<std::byte> copies) const {
  if (p.copy_is_elsewhere()) return elsewhere_->read_kept(p, Kept::copy, first, copies);
  const auto count = static_cast<std::int64_t>(copies.size() / size_of(p.compute_dtype()));
  device_->copy_to_host(copies, part_of(p.own_compute(), first, count));
}

}  // namespace llmtrain
