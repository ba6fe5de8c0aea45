#pragma once
/// Where the elements of a logical tensor live on the mesh.

#include <array>
#include <cstdint>
#include <span>

#include "lib/mesh/mesh.hpp"
#include "lib/tensor/shape.hpp"

namespace llmtrain {

/// How one mesh axis holds a tensor.
struct AxisPlacement {
  /// Tensor dim that is split over the axis; -1 when every rank of the axis holds all of it.
  int split_dim = -1;
  /// With a split: neighbouring ranks of the axis that hold the same part (KV heads fewer than
  /// ranks).
  int replicas = 1;
  /// With a split: parts may differ in size (vocabularies). None is empty; where there are enough
  /// elements, each begins at a multiple of kUnevenBlock.
  bool uneven = false;
  /// The gradient computed on each rank of the axis is one term of the whole sum.
  bool grad_partial = false;
};

inline constexpr std::int64_t kUnevenBlock = 64;
/// Where part `part` of `whole` elements in `parts` uneven parts begins; the end for `parts`.
std::int64_t uneven_begin(std::int64_t whole, int parts, int part);
/// Elements of the largest of them.
std::int64_t largest_uneven_part(std::int64_t whole, int parts);

struct Placement {
  std::array<AxisPlacement, kNumAxes> axes{};
  /// The first dim is one of experts, of which each rank of Mesh::experts() has its part.
  bool of_experts = false;
  DataHolders holders() const { return of_experts ? DataHolders::same_experts : DataHolders::all; }
  const AxisPlacement& operator[](Axis axis) const { return axes[static_cast<int>(axis)]; }
  AxisPlacement& operator[](Axis axis) { return axes[static_cast<int>(axis)]; }
};

/// Whether this rank is the first of those that hold the same box of a tensor, among the ranks that
/// differ from it along `axes`: what is to be counted or written once is its business.
bool is_first_replica(const Placement& placement, const Mesh& mesh, std::span<const Axis> axes);

/// A box of a logical tensor: `shape` elements from `offset` on, per dim.
struct Box {
  std::array<std::int64_t, Shape::kMaxRank> offset{};
  Shape shape;
};

/// The box of a tensor of `global` shape that the rank at `mesh` holds. RecipeError, with the
/// nearest sizes that divide, when a split does not come out even.
Box local_box(const Placement& placement, const Shape& global, const Mesh& mesh,
              std::string_view tensor_name);

}  // namespace llmtrain
