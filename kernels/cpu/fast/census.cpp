#include "kernels/census.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::fast {

namespace {

/// Elements [begin, end) of x, row by row. `out`: a row of Census::scratch.
template <class T>
void census_of_part(const View& x, std::int64_t begin, std::int64_t end, double* out) {
  std::array<std::uint32_t, Census::kBins> counts{};
  std::array<double, Census::kPowers> powers{};
  double amax = 0;
  const std::int64_t cols = x.cols();
  while (begin < end) {
    const std::int64_t row = begin / cols, col = begin - row * cols;
    const std::int64_t count = std::min(cols - col, end - begin);
    const T* const numbers = x.row<T>(row) + col;
    for (std::int64_t j = 0; j < count; ++j) {
      const double value = widen(numbers[j]);
      const auto bin = static_cast<std::size_t>(
          Census::bin_of(std::bit_cast<std::uint32_t>(static_cast<float>(value))));
      ++counts[bin];
      // Not a jump, which would be guessed: what is not finite is as good as zero.
      const double finite = bin < Census::kNotFinite ? value : 0;
      const double square = finite * finite;
      powers[0] += finite;
      powers[1] += square;
      powers[2] += square * finite;
      powers[3] += square * square;
      amax = std::max(amax, std::abs(finite));
    }
    begin += count;
  }
  out = std::copy(counts.begin(), counts.end(), out);
  out = std::copy(powers.begin(), powers.end(), out);
  *out = amax;
}

void census(const KernelCtx& ctx, const Census& op, const View&) {
  const std::int64_t numel = op.x.rows() * op.x.cols(), parts = Census::parts(numel);
  auto* const scratch = op.scratch.as<double>();
  with_type(op.x.dtype, [&]<class T>() {
    parallel_blocks(ctx.threads, parts, 1, [&](std::int64_t part, std::int64_t) {
      census_of_part<T>(op.x, Census::first_of_part(part, numel),
                        Census::first_of_part(part + 1, numel), scratch + part * Census::kColumns);
    });
  });
  const auto add = [](const double* of_part, std::int64_t count, double* sums) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += of_part[i];
  };
  for (std::int64_t part = 0; part < parts; ++part) {
    const double* const row = scratch + part * Census::kColumns;
    add(row, Census::kBins, op.counts.as<double>());
    add(row + Census::kBins, Census::kPowers, op.powers.as<double>());
    double& amax = *op.amax.as<double>();
    amax = std::max(amax, row[Census::kColumns - 1]);
  }
}

}  // namespace

void add_census_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Census, census>()); }

}  // namespace llmtrain::kernels::fast
