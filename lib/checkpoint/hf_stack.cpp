#include "lib/checkpoint/hf_stack.hpp"

#include <set>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

Dims HfStack::file_shape() const {
  if (is_vector) return {out};
  return tensor->transposed ? Dims{in, out} : Dims{out, in};
}

std::int64_t HfStack::rows_of(const Parameter& member) {
  const Shape& shape = member.global_shape();
  return shape[shape.rank() == 3 ? 1 : 0];
}

std::optional<MatrixPart> HfStack::part_of(const Parameter& member) const {
  if (!member.is_local()) return std::nullopt;
  const llmtrain::Box& box = member.box();
  const int rank = box.shape.rank();
  if (rank == 1) return MatrixPart{.row = box.offset[0], .rows = box.shape[0]};
  MatrixPart part{.row = box.offset[rank - 2],
                  .rows = box.shape[rank - 2],
                  .col = box.offset[rank - 1],
                  .cols = box.shape[rank - 1]};
  if (rank == 2) return part;
  const std::int64_t expert = tensor->expert - box.offset[0];
  if (expert < 0 || expert >= box.shape[0]) return std::nullopt;
  part.first = expert * part.numel();
  return part;
}

namespace {

std::int64_t matrices_of(const Parameter& p) {
  return p.global_shape().rank() == 3 ? p.global_shape()[0] : 1;
}

}  // namespace

std::vector<HfStack> hf_stacks(const ParameterStore& store, const HfLayout& layout) {
  std::vector<HfStack> stacks;
  std::set<std::pair<const Parameter*, std::int64_t>> seen;
  for (const HfTensor& tensor : layout.tensors) {
    HfStack& stack = stacks.emplace_back();
    stack.tensor = &tensor;
    for (const std::string& name : tensor.members) {
      const Parameter& p = store.find(name);
      require(tensor.expert < matrices_of(p), "{} has no expert {}", name, tensor.expert);
      require(seen.emplace(&p, tensor.expert).second, "{} is twice in a layout", name);
      stack.members.push_back(&p);
      stack.out += HfStack::rows_of(p);
      stack.is_vector = p.global_shape().rank() == 1;
      if (!stack.is_vector) stack.in = p.global_shape().cols();
    }
  }
  std::size_t matrices = 0;
  for (const auto& p : store.all()) matrices += static_cast<std::size_t>(matrices_of(*p));
  require(seen.size() == matrices, "a layout of {} parameters and experts for a model of {}",
          seen.size(), matrices);
  return stacks;
}

}  // namespace llmtrain::checkpoint
