#include <algorithm>
#include <bit>

#include "kernels/census.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// A thread block per part of x, whose numbers become a row of `scratch`. Counts of a block fit
/// into 32 bits: a part has less than 2^32 numbers.
template <class T>
__global__ void __launch_bounds__(kThreads)
    census_of_parts(Rows<const T> x, std::int64_t cols, std::int64_t numel, double* scratch) {
  __shared__ unsigned counts[Census::kBins];
  __shared__ double slots[Census::kPowers][kWarps];
  __shared__ unsigned long long largest;
  for (int bin = static_cast<int>(threadIdx.x); bin < Census::kBins; bin += kThreads) {
    counts[bin] = 0;
  }
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const std::int64_t begin = Census::first_of_part(blockIdx.x, numel);
  const std::int64_t end = Census::first_of_part(blockIdx.x + 1, numel);
  double powers[Census::kPowers] = {}, amax = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const std::int64_t row = i / cols;
    const double value = widen(x.row(row)[i - row * cols]);
    const std::int64_t bin =
        Census::bin_of(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    atomicAdd(counts + bin, 1u);
    if (bin >= Census::kNotFinite) continue;
    double power = 1;
    for (double& sum : powers) sum += power *= value;
    const double magnitude = value < 0 ? -value : value;
    amax = magnitude > amax ? magnitude : amax;
  }
  // Of numbers that are not negative the larger has the larger bits.
  atomicMax(&largest, std::bit_cast<unsigned long long>(amax));
  double* const out = scratch + blockIdx.x * Census::kColumns;
  for (int k = 0; k < Census::kPowers; ++k) {
    const double sum = sum_of_block<kThreads>(powers[k], slots[k]);
    if (threadIdx.x == 0) out[Census::kBins + k] = sum;
  }
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < Census::kBins; bin += kThreads) {
    out[bin] = counts[bin];
  }
  if (threadIdx.x == 0) out[Census::kColumns - 1] = std::bit_cast<double>(largest);
}

/// A thread per column of `scratch`.
__global__ void __launch_bounds__(kThreads)
    join_parts(const double* scratch, std::int64_t parts, double* counts, double* powers,
               double* amax) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= Census::kColumns) return;
  const bool is_max = column == Census::kColumns - 1, is_count = column < Census::kBins;
  double* const to = is_max ? amax : is_count ? counts + column : powers + column - Census::kBins;
  double joined = *to;
  for (std::int64_t part = 0; part < parts; ++part) {
    const double value = scratch[part * Census::kColumns + column];
    joined = !is_max ? joined + value : value > joined ? value : joined;
  }
  *to = joined;
}

void census(const KernelCtx& ctx, const Census& op, const View&) {
  const std::int64_t numel = op.x.rows() * op.x.cols(), parts = Census::parts(numel);
  if (numel == 0) return;
  auto* const scratch = op.scratch.as<double>();
  with_type(op.x.dtype, [&]<class T>() {
    launch_grid(ctx, {static_cast<unsigned>(parts), kThreads}, census_of_parts<T>,
                Rows<const T>(op.x), op.x.cols(), numel, scratch);
  });
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(Census::kColumns, kThreads)), kThreads},
              join_parts, scratch, parts, op.counts.as<double>(), op.powers.as<double>(),
              op.amax.as<double>());
}

}  // namespace

void add_census_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Census, census>()); }

}  // namespace llmtrain::kernels::cuda
