#include "lib/param/placement.hpp"

#include <algorithm>

#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

std::int64_t uneven_begin(std::int64_t whole, int parts, int part) {
  const std::int64_t block = whole >= parts * kUnevenBlock ? kUnevenBlock : 1;
  const std::int64_t blocks = (whole + block - 1) / block;
  return std::min(whole, blocks * part / parts * block);
}

std::int64_t largest_uneven_part(std::int64_t whole, int parts) {
  std::int64_t largest = 0;
  for (int p = 0; p < parts; ++p) {
    largest = std::max(largest, uneven_begin(whole, parts, p + 1) - uneven_begin(whole, parts, p));
  }
  return largest;
}

bool is_first_replica(const Placement& placement, const Mesh& mesh, std::span<const Axis> axes) {
  return std::all_of(axes.begin(), axes.end(), [&](Axis axis) {
    const AxisPlacement& how = placement[axis];
    const int index = mesh.index(axis);
    return how.split_dim < 0 ? index == 0 : index % how.replicas == 0;
  });
}

namespace {

// "2 and 4 do": sizes of an axis next to `parts` * `replicas` that come out even.
std::string nearest_sizes(std::int64_t whole, std::int64_t parts, std::int64_t replicas) {
  std::int64_t below = parts, above = parts;
  while (whole % below != 0) --below;
  while (above < whole && whole % above != 0) ++above;
  return above > whole ? fmt::format("{} does", below * replicas)
                       : fmt::format("{} and {} do", below * replicas, above * replicas);
}

std::string key_of(Axis axis) { return fmt::format("parallelism.{}", to_string(axis)); }

}  // namespace

Box local_box(const Placement& placement, const Shape& global, const Mesh& mesh,
              std::string_view tensor_name) {
  Box box{.offset = {}, .shape = global};
  if (placement.of_experts && mesh.experts().size() > 1) {
    const int ranks = mesh.experts().size();
    if (global[0] % ranks != 0) {
      throw RefusedKey(
          "parallelism.ep",
          fmt::format("{} does not divide the {} experts of {}", ranks, global[0], tensor_name),
          nearest_sizes(global[0], ranks, 1));
    }
    box.shape = global.with(0, global[0] / ranks);
    box.offset[0] = box.shape[0] * mesh.experts().rank();
  }
  for (int a = 0; a < kNumAxes; ++a) {
    const Axis axis{static_cast<std::uint8_t>(a)};
    const AxisPlacement& how = placement[axis];
    if (how.split_dim < 0) continue;
    const int size = mesh.size(axis);
    require(size % how.replicas == 0, "{}: {} replicas on axis {} of size {}", tensor_name,
            how.replicas, to_string(axis), size);
    const int parts = size / how.replicas;
    const std::int64_t whole = box.shape[how.split_dim];
    if (how.uneven) {
      if (whole < parts) {
        throw RefusedKey(key_of(axis),
                         fmt::format("{} is more than the {} elements that dim {} of {} {} has",
                                     size, whole, how.split_dim, tensor_name, to_string(global)),
                         fmt::format("at most {} does", whole));
      }
      const int part = mesh.index(axis) / how.replicas;
      const std::int64_t begin = uneven_begin(whole, parts, part);
      box.offset[how.split_dim] += begin;
      box.shape = box.shape.with(how.split_dim, uneven_begin(whole, parts, part + 1) - begin);
      continue;
    }
    if (whole % parts != 0) {
      throw RefusedKey(key_of(axis),
                       fmt::format("{} does not divide the {} elements of dim {} of {} {}", size,
                                   whole, how.split_dim, tensor_name, to_string(global)),
                       nearest_sizes(whole, parts, how.replicas));
    }
    const std::int64_t part = whole / parts;
    box.offset[how.split_dim] += part * (mesh.index(axis) / how.replicas);
    box.shape = box.shape.with(how.split_dim, part);
  }
  return box;
}

}  // namespace llmtrain
