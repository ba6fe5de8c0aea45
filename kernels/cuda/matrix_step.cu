// Updates by steps of matrices, of which each has scalars of its own, with the reference's bits.
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/update.cuh"
#include "kernels/factored.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Elements of one matrix, which begins at `base`.
template <class T>
struct StepOfMatrix {
  Masters<T> masters;
  const T* u;
  T* m;  // or null
  MatrixStepScalars<T> s;
  std::int64_t base;

  template <int V>
  __device__ void update(std::int64_t in_matrix) const {
    const std::int64_t i = base + in_matrix;
    auto ps = masters.template load<V>(i);
    const auto us = load_pack<V>(u + i);
    if (m == nullptr) {
      for (int k = 0; k < V; ++k) ps.x[k] = s.apply(ps.x[k], us.x[k]);
    } else {
      auto ms = load_pack<V>(m + i);
      for (int k = 0; k < V; ++k) ps.x[k] = s.apply(ps.x[k], us.x[k], ms.x[k]);
      store_pack(m + i, ms);
    }
    masters.store(i, ps, s.update);
  }
};

template <class T>
struct CameOfMatrix {
  T *u, *m;
  T divisor, beta1, one_minus_beta1;
  std::int64_t base;

  template <int V>
  __device__ void update(std::int64_t in_matrix) const {
    const std::int64_t i = base + in_matrix;
    auto us = load_pack<V>(u + i), ms = load_pack<V>(m + i);
    for (int k = 0; k < V; ++k) {
      us.x[k] = CameMoment::residual(us.x[k], divisor, beta1, one_minus_beta1, ms.x[k]);
    }
    store_pack(u + i, us);
    store_pack(m + i, ms);
  }
};

/// A thread block per chunk of a matrix of `each` elements.
struct ChunksOfMatrices {
  std::int64_t each, of_matrix;
  unsigned count;
  bool packs;

  /// `views` are of all elements.
  template <class... Views>
  ChunksOfMatrices(std::int64_t matrices, const View& first, const Views&... views)
      : each(first.numel() / matrices),
        of_matrix(list_chunks(each)),
        count(static_cast<unsigned>(matrices * of_matrix)) {
    const int width = MapShape(first, views...).width;
    packs = width > 1 && each % width == 0;
  }
  __device__ std::int64_t matrix() const { return blockIdx.x / of_matrix; }
  template <class T, class Of>
  __device__ void update(const Of& of) const {
    update_chunk<T>(of, {each, matrix() * of_matrix}, packs);
  }
};

__device__ double divisor_of(const StepClip& clip, const double* squares, std::int64_t matrix) {
  return squares == nullptr ? 1 : clip.divisor(squares[matrix]);
}

/// Only the numbers of `op` are read.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    step_chunks(MatrixStepUpdate op, ChunksOfMatrices chunks, Masters<T> masters, const T* u, T* m,
                const double* step_squares, const double* parameter_squares,
                const UpdateDecision* decision) {
  if (decision->apply == 0) return;
  const std::int64_t k = chunks.matrix();
  const double scale = parameter_squares == nullptr ? 1 : op.scale(parameter_squares[k]);
  const MatrixStepScalars<T> scalars(op, *decision, scale / divisor_of(op.clip, step_squares, k));
  chunks.template update<T>(StepOfMatrix<T>{masters, u, m, scalars, k * chunks.each});
}

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    came_chunks(CameMoment op, ChunksOfMatrices chunks, T* u, T* m, const double* squares,
                const UpdateDecision* decision) {
  if (decision->apply == 0) return;
  const std::int64_t k = chunks.matrix();
  chunks.template update<T>(CameOfMatrix<T>{u, m, static_cast<T>(divisor_of(op.clip, squares, k)),
                                            static_cast<T>(op.beta1), static_cast<T>(1 - op.beta1),
                                            k * chunks.each});
}

void matrix_step_update(const KernelCtx& ctx, const MatrixStepUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const ChunksOfMatrices chunks(op.matrices, op.u, to.parameter, op.m, to.compute_copy,
                                to.remainder);
  with_master_type(op.u.dtype, 1, [&]<class T, int V>() {
    launch_grid(ctx, {chunks.count, kMapThreads}, step_chunks<T>, op, chunks, Masters<T>(to),
                op.u.as<const T>(), op.m.as<T>(), op.clip.squares.as<const double>(),
                op.parameter_squares.as<const double>(), op.decision.as<UpdateDecision>());
  });
}

void came_moment(const KernelCtx& ctx, const CameMoment& op, const View&) {
  const ChunksOfMatrices chunks(op.matrices, op.u, op.m);
  with_master_type(op.u.dtype, 1, [&]<class T, int V>() {
    launch_grid(ctx, {chunks.count, kMapThreads}, came_chunks<T>, op, chunks, op.u.as<T>(),
                op.m.as<T>(), op.clip.squares.as<const double>(), op.decision.as<UpdateDecision>());
  });
}

}  // namespace

void add_matrix_step_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<MatrixStepUpdate, matrix_step_update>());
  rows.push_back(row_of<CameMoment, came_moment>());
}

}  // namespace llmtrain::kernels::cuda
