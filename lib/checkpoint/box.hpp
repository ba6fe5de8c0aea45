#pragma once
/// Boxes: axis-aligned parts of a logical row-major tensor, the unit in which checkpoints store and
/// read data. Offsets and shapes are in elements; a scalar has no dims and one element.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace llmtrain::checkpoint {

using Dims = std::vector<std::int64_t>;

inline constexpr std::size_t kMaxDims = 5;
/// Larger tensors are refused, so that no product of dims can overflow anywhere.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;

struct Box {
  Dims offset;
  Dims shape;
  bool operator==(const Box&) const = default;
};

/// Number of elements. Empty if a dim is negative or any partial product exceeds kMaxElements, so
/// that [2^32, 2^32, 0] is refused too.
std::optional<std::int64_t> num_elements(const Dims& shape);

/// "[2, 3]".
std::string to_string(const Dims& dims);

/// Whether `box` has the dims of `global` and lies inside it.
bool lies_inside(const Dims& global, const Box& box);

/// The common part of two boxes of one tensor; nothing if it has no element.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Whether the boxes, each inside `global`, cover every element of it exactly once. Linear in the
/// number of boxes times 2^dims: a sum of box indicators is determined by its signed corners, which
/// must cancel to those of `global`.
bool tile_exactly(const Dims& global, std::span<const Box> boxes);

/// The elements [begin, end) of the row-major index as boxes, in ascending order; each is
/// contiguous in the tensor's memory. At most 2 * dims - 1 of them.
std::vector<Box> boxes_of_range(const Dims& global, std::int64_t begin, std::int64_t end);

/// Elements that lie contiguously in two boxes' own row-major storage.
struct Run {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

/// Calls `visit` for the maximal runs of the intersection of `source` and `target`, ascending in
/// both.
void for_each_run(const Box& source, const Box& target,
                  const std::function<void(const Run&)>& visit);

}  // namespace llmtrain::checkpoint
