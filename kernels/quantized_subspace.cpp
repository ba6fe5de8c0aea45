#include "kernels/quantized_subspace.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::initializer_list<DType> kMasters = {DType::f64, DType::f32};

void check_codes(const Operands& operands, const View& codes, const View& scales, const View& zeros,
                 std::int64_t numel, std::int64_t group) {
  operands.expects(group > 0, "groups of one element or more");
  operands.dense("codes", codes, numel, {DType::u8});
  operands.dense("scales", scales, affine_groups(numel, group), {DType::f32});
  operands.dense("zeros", zeros, affine_groups(numel, group), {DType::u8});
}

}  // namespace

void SubspaceDecisions::check() const {
  const Operands operands(name);
  for (const View& d : {decision, step, choice}) check_decision(operands, d);
  operands.dense("gap", gap, 1, {DType::f64});
  for (const View& d : {step, choice}) operands.distinct("step, choice", d, "decision", decision);
  operands.distinct("step", step, "choice", choice);
}

Cost SubspaceDecisions::cost() const { return memory_cost({decision, gap}, {step, choice}); }

void FollowSubspace::check() const {
  const Operands operands(name);
  operands.expects(vectors.shape.rank() == 2 && vectors.numel() > 0, "one vector or more");
  operands.dense("vectors", vectors, vectors.numel(), kMasters);
  operands.dense("leading", leading, of_rows ? vectors.cols() : vectors.rows(), {vectors.dtype});
  operands.dense("similarities", similarities, similarities.numel(), {DType::f64});
  operands.dense("gap", gap, 1, {DType::f64});
  operands.expects(similarities.numel() > 0, "room for a similarity");
  operands.expects(growth >= 1 && apart > 0, "a gap that does not shrink");
  check_decision(operands, decision);
}

Cost FollowSubspace::cost() const {
  return 1 / static_cast<double>(apart) *
         memory_cost({leading, leading, similarities, gap}, {leading, leading, similarities, gap});
}

void AffineQuantize::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), kMasters);
  operands.expects(bits >= 1 && bits <= 8 && apart > 0, "codes of 1 to 8 bits");
  check_codes(operands, codes, scales, zeros, x.numel(), group);
  check_decision(operands, decision);
}

Cost AffineQuantize::cost() const {
  return 1 / static_cast<double>(apart) * memory_cost({x, x}, {codes, scales, zeros});
}

void AffineDequantize::check() const {
  const Operands operands(name);
  operands.dense("y", y, y.numel(), kMasters);
  check_codes(operands, codes, scales, zeros, y.numel(), group);
}

Cost AffineDequantize::cost() const { return memory_cost({codes, scales, zeros}, {y}); }

}  // namespace llmtrain::kernels
