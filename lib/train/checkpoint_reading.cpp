#include "lib/train/checkpoint_reading.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>

#include "lib/base/parallel.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/checkpoint/verify.hpp"

namespace llmtrain::train {

namespace {

// Bytes that a thread reads at a time: the host never holds a second copy of a tensor.
constexpr std::uint64_t kReadBytes = 4 << 20;

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

/// How values of type `saved` become `wanted`; nullptr where they do not. What was saved without a
/// master, and states of bf16, are bf16; where these are wanted now, FP64 is rounded to FP32, the
/// type of what is written to parameters, and that to bf16. Codes of 8-bit states are no numbers,
/// and become none.
CheckpointReading::Conversion conversion(DType saved, DType wanted) {
  if (saved == DType::bf16 && wanted == DType::f32) return convert<bf16, float>;
  if (saved == DType::bf16 && wanted == DType::f64) return convert<bf16, double>;
  if (saved == DType::f32 && wanted == DType::f64) return convert<float, double>;
  if (saved == DType::f64 && wanted == DType::f32) return convert<double, float>;
  if (saved == DType::f32 && wanted == DType::bf16) return convert<float, bf16>;
  if (saved == DType::f64 && wanted == DType::bf16) return convert<double, bf16>;
  return nullptr;
}

/// The files that the checker of `handover` reads.
std::set<std::string> offered_files(const checkpoint::Manifest& manifest,
                                    const checkpoint::Handover& handover) {
  const auto files = checkpoint::files_of(
      manifest, {.checker = handover.checker(), .checkers = handover.checkers()});
  return {files.begin(), files.end()};
}

}  // namespace

checkpoint::Dims dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

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

void CheckpointReading::add(const std::string& name, const TensorPlace& place, DType wanted,
                            Write write, std::span<std::byte> memory) {
  const auto& tensors = loader_.manifest().tensors;
  const auto found = tensors.find(name);
  const DType saved = found == tensors.end() ? wanted : found->second.dtype;
  const Conversion converted = conversion(saved, wanted);
  const DType dtype = converted != nullptr ? saved : wanted;  // else the loader refuses it
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
      const auto in_memory = static_cast<std::uint64_t>(first - place.own.first) * size_of(wanted);
      const bool as_it_is = converted == nullptr && !memory.empty();
      parts_.push_back({{name, dtype, dims_of(place.global_shape), std::move(box)},
                        first,
                        saved_bytes,
                        wanted,
                        converted,
                        &shared,
                        as_it_is ? memory.subspan(in_memory, saved_bytes) : memory.first(0)});
    }
  }
}

void CheckpointReading::run(int threads, checkpoint::Handover* handover) const {
  std::vector<const Part*> others;
  if (handover != nullptr) {
    others = divide(*handover);
  } else {
    for (const Part& part : parts_) others.push_back(&part);
  }
  std::atomic<std::size_t> next = 0;
  const auto read_next = [&] {
    const std::size_t i = next++;
    if (i < others.size()) read(*others[i]);
    return i < others.size();
  };
  parallel_for(static_cast<std::size_t>(threads), threads, [&](std::size_t) {
    try {
      if (handover != nullptr) handover->serve(read_next);
      while (read_next()) {
      }
    } catch (...) {
      next = others.size();
      throw;
    }
  });
}

std::vector<const CheckpointReading::Part*> CheckpointReading::divide(
    checkpoint::Handover& handover) const {
  const std::set<std::string> files = offered_files(loader_.manifest(), handover);
  std::vector<const Part*> all, others;
  std::vector<checkpoint::Handover::Want> wants;
  for (const Part& part : parts_) {
    stop_if_asked("loading a checkpoint");
    all.push_back(&part);
    const auto runs = loader_.find_runs(part.request, files);
    // Pieces end between elements where these begin at multiples of their size.
    const std::uint64_t size = size_of(part.request.dtype);
    const auto is_aligned = [&](const auto& run) { return run.begin % size == 0; };
    if (!runs || !std::ranges::all_of(*runs, is_aligned)) {
      others.push_back(&part);
      continue;
    }
    for (const auto& run : *runs) {
      wants.push_back(
          {run.file, run.begin, run.begin + run.bytes,
           [&part, to = run.to](std::uint64_t offset, std::span<const std::byte> bytes) {
             store(part, to + offset, bytes);
           }});
    }
  }
  return handover.expect(std::move(wants)) ? others : all;
}

void CheckpointReading::read(const Part& part) const {
  stop_if_asked("loading a checkpoint");
  if (!part.memory.empty()) return loader_.read_box(part.request, part.memory);
  const auto saved = std::make_unique_for_overwrite<std::byte[]>(part.saved_bytes);
  loader_.read_box(part.request, {saved.get(), part.saved_bytes});
  store(part, 0, {saved.get(), part.saved_bytes});
}

void CheckpointReading::store(const Part& part, std::uint64_t at,
                              std::span<const std::byte> saved) {
  if (!part.memory.empty()) {
    std::memcpy(part.memory.data() + at, saved.data(), saved.size());
    return;
  }
  const std::uint64_t size = size_of(part.request.dtype);
  require(at % size == 0 && saved.size() % size == 0, "tensor '{}': {} bytes from {} on",
          part.request.name, saved.size(), at);
  const std::int64_t first = part.first + static_cast<std::int64_t>(at / size);
  if (part.conversion == nullptr) return (*part.write)(first, saved);
  const std::uint64_t wanted_bytes = saved.size() / size * size_of(part.wanted);
  const auto wanted = std::make_unique_for_overwrite<std::byte[]>(wanted_bytes);
  part.conversion(saved, {wanted.get(), wanted_bytes});
  (*part.write)(first, {wanted.get(), wanted_bytes});
}

}  // namespace llmtrain::train
