#include "lib/checkpoint/box.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

std::optional<std::int64_t> num_elements(const Dims& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count) || count > kMaxElements) return {};
  }
  return count;
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

bool lies_inside(const Dims& global, const Box& box) {
  if (box.offset.size() != global.size() || box.shape.size() != global.size()) return false;
  for (std::size_t d = 0; d < global.size(); ++d) {
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.shape[d] > global[d] ||
        box.offset[d] > global[d] - box.shape[d]) {
      return false;
    }
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  require(a.offset.size() == b.offset.size(), "intersecting boxes of {} and {} dims",
          a.offset.size(), b.offset.size());
  Box common;
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (end <= begin) return {};
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

bool tile_exactly(const Dims& global, std::span<const Box> boxes) {
  const auto elements = num_elements(global);
  require(elements.has_value() && global.size() <= kMaxDims,
          "shape {} is not checked before tiling", to_string(global));
  for (const Box& box : boxes) {
    if (!lies_inside(global, box)) return false;
  }
  if (*elements == 0) return true;

  // A corner's key is its index in the grid of shape global + 1, below 2^kMaxDims * kMaxElements.
  std::vector<std::pair<std::uint64_t, std::int32_t>> corners;
  corners.reserve((boxes.size() + 1) << global.size());
  const auto add_corners = [&](const Dims& offset, const Dims& shape, std::int32_t sign) {
    for (std::uint32_t mask = 0; mask < (1u << global.size()); ++mask) {
      std::uint64_t key = 0;
      std::int32_t corner_sign = sign;
      for (std::size_t d = 0; d < global.size(); ++d) {
        const bool far = ((mask >> d) & 1u) != 0;
        key = key * static_cast<std::uint64_t>(global[d] + 1) +
              static_cast<std::uint64_t>(offset[d] + (far ? shape[d] : 0));
        if (far) corner_sign = -corner_sign;
      }
      corners.emplace_back(key, corner_sign);
    }
  };
  for (const Box& box : boxes) add_corners(box.offset, box.shape, 1);
  add_corners(Dims(global.size(), 0), global, -1);

  std::sort(corners.begin(), corners.end());
  for (std::size_t i = 0; i < corners.size();) {
    const std::uint64_t key = corners[i].first;
    std::int64_t sum = 0;
    for (; i < corners.size() && corners[i].first == key; ++i) sum += corners[i].second;
    if (sum != 0) return false;
  }
  return true;
}

std::vector<Box> boxes_of_range(const Dims& global, std::int64_t begin, std::int64_t end) {
  const auto elements = num_elements(global);
  require(elements.has_value() && 0 <= begin && begin <= end && end <= *elements,
          "range [{}, {}) of a tensor of shape {}", begin, end, to_string(global));
  Dims stride(global.size(), 1);
  for (std::size_t d = global.size(); d-- > 1;) stride[d - 1] = stride[d] * global[d];

  std::vector<Box> boxes;
  while (begin < end) {
    // The largest aligned box that starts at `begin`: whole dims below `d`, a stretch of dim `d`.
    std::size_t d = 0;
    while (d + 1 < global.size() && (begin % stride[d] != 0 || end - begin < stride[d])) ++d;
    Box box{Dims(global.size(), 0), global};
    std::int64_t taken = 1;
    for (std::size_t i = 0; i < global.size(); ++i) {
      const std::int64_t index = begin / stride[i] % global[i];
      if (i > d) continue;
      box.offset[i] = index;
      box.shape[i] = i < d ? 1 : std::min(global[i] - index, (end - begin) / stride[i]);
      taken = box.shape[i] * stride[i];
    }
    boxes.push_back(std::move(box));
    begin += taken;
  }
  return boxes;
}

void for_each_run(const Box& source, const Box& target,
                  const std::function<void(const Run&)>& visit) {
  const std::optional<Box> common = intersect(source, target);
  if (!common) return;
  const std::size_t dims = common->shape.size();
  // Dims [outer, dims) form one run: all but the first of them are whole in both boxes.
  std::size_t outer = dims;
  std::int64_t count = 1;
  while (outer > 0) {
    --outer;
    count *= common->shape[outer];
    if (common->shape[outer] != source.shape[outer] ||
        common->shape[outer] != target.shape[outer]) {
      break;
    }
  }
  const auto position = [&](const Box& box, const Dims& at) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < dims; ++d) index = index * box.shape[d] + at[d] - box.offset[d];
    return index;
  };
  Dims at = common->offset;
  while (true) {
    visit({position(source, at), position(target, at), count});
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == common->offset[d - 1] + common->shape[d - 1]) {
      at[d - 1] = common->offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace llmtrain::checkpoint
