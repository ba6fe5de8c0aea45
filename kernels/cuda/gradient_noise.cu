// Noise on gradients, with the reference's bits.
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/gradient_noise.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// One gradient of a list.
template <class T>
struct NoiseRow {
  T* gradient;
  const StochasticRounding& drawn;
  std::uint64_t step;
  double deviation;

  template <int V>
  __device__ void update(std::int64_t i) const {
    auto gs = load_pack<V>(gradient + i);
    PhiloxWords words{};
    std::uint64_t block = ~std::uint64_t{0};
    for (int k = 0; k < V; ++k) {
      const std::uint64_t index = drawn.index(i + k);
      if (index / 4 != block) words = philox_block(drawn.key, step, index);
      block = index / 4;
      const double z = plain_normal(word_of(words, index % 4));
      gs.x[k] = GradientNoise::noisy(gs.x[k], deviation, z);
    }
    store_pack(gradient + i, gs);
  }
};

/// A thread block per chunk. Only the numbers of `op` are read.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    noise_chunks(List<GradientNoise::Row> list, GradientNoise op, const UpdateDecision* decision) {
  if (decision->apply == 0) return;
  const GradientNoise::Row& row = list.row_at(blockIdx.x);
  const NoiseRow<T> of{static_cast<T*>(row.gradient), row.words, GradientNoise::step(*decision),
                       op.deviation(*decision)};
  update_chunk<T>(of, row.place, lies_at(row.gradient, 16));
}

void gradient_noise(const KernelCtx& ctx, const GradientNoise& op, const View&) {
  const List<GradientNoise::Row> list(op, op.gradients);
  launch_grid(ctx, list.grid(kMapThreads),
              op.dtype() == DType::f64 ? noise_chunks<double> : noise_chunks<float>, list, op,
              op.decision.as<UpdateDecision>());
}

}  // namespace

void add_gradient_noise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GradientNoise, gradient_noise>());
}

}  // namespace llmtrain::kernels::cuda
