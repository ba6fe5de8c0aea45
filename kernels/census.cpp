#include "kernels/census.hpp"

#include <bit>

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void Census::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.dense("counts", counts, kBins, {DType::f64});
  operands.dense("powers", powers, kPowers, {DType::f64});
  operands.dense("amax", amax, 1, {DType::f64});
  operands.dense("scratch", scratch, kParts * kColumns, {DType::f64});
}

Cost Census::cost() const { return memory_cost({x, counts, powers, amax}, {counts, powers, amax}); }

double Census::least_of_bin(std::int64_t bin) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bin) << 21);
}

}  // namespace llmtrain::kernels
