#include "kernels/census.hpp"

#include <bit>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void census(const KernelCtx&, const Census& op, const View&) {
  auto* const counts = op.counts.as<double>();
  auto* const powers = op.powers.as<double>();
  double& amax = *op.amax.as<double>();
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        const double x = widen(op.x.row<T>(i)[j]);
        const std::int64_t bin =
            Census::bin_of(std::bit_cast<std::uint32_t>(static_cast<float>(x)));
        ++counts[bin];
        if (bin >= Census::kNotFinite) continue;
        double power = 1;
        for (std::int64_t k = 0; k < Census::kPowers; ++k) powers[k] += power *= x;
        amax = std::max(amax, std::abs(x));
      }
    }
  });
}

}  // namespace

void add_census_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Census, census>()); }

}  // namespace llmtrain::kernels::reference
