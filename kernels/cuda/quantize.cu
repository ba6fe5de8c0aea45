// Quantization in software with the reference's bits: codes and scales by the same functions.
#include <bit>

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/quantize_codes.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Which block an element of a matrix lies in.
struct Blocks {
  std::int64_t rows, cols;  // of a block
  std::int64_t across;
  Blocks(const BlockShape& block, const View& matrix)
      : rows(std::max<std::int64_t>(1, block.rows_of(matrix.rows()))),
        cols(std::max<std::int64_t>(1, block.cols_of(matrix.cols()))),
        across(block.across(matrix.cols())) {}
  __device__ std::int64_t of(std::int64_t row, std::int64_t col) const {
    return divide(row, rows) * across + divide(col, cols);
  }
  /// The blocks of a row's neighbours from one column on, most of which are in the first's: a
  /// quotient for each would cost more than what is computed of it.
  struct Run {
    std::int64_t first, left;  // neighbours in the first's block
    __device__ std::int64_t of(const Blocks& blocks, std::int64_t row, std::int64_t col,
                               int i) const {
      return i < left ? first : blocks.of(row, col + i);
    }
  };
  __device__ Run run(std::int64_t row, std::int64_t col) const {
    const std::int64_t block = divide(col, cols);
    return {divide(row, rows) * across + block, (block + 1) * cols - col};
  }
};

/// Raises *to, which other threads raise too. Of numbers that are not negative the larger has the
/// larger bits, and the largest does not depend on who comes first.
__device__ void raise(float* to, float value) {
  atomicMax(reinterpret_cast<unsigned*>(to), std::bit_cast<unsigned>(value));
}

/// A NaN is not larger than anything.
__device__ float larger(float so_far, float magnitude) {
  return magnitude > so_far ? magnitude : so_far;
}

/// Work of one warp, or in narrow blocks of one thread.
constexpr std::int64_t kPieceCols = 1024, kPieceRows = 128;

/// A warp takes a piece of one row within one block.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    amax_of_pieces(Rows<const T> x, std::int64_t cols, std::int64_t piece_cols,
                   std::int64_t per_row, std::int64_t pieces, Blocks blocks, float* amax) {
  const std::int64_t lane = threadIdx.x % 32;
  for (std::int64_t p = (std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x) / 32; p < pieces;
       p += std::int64_t{gridDim.x} * (kMapThreads / 32)) {
    const std::int64_t row = divide(p, per_row), begin = (p - row * per_row) * piece_cols;
    const std::int64_t end = begin + piece_cols < cols ? begin + piece_cols : cols;
    float largest = 0;
    for (std::int64_t j = begin + lane; j < end; j += 32) {
      largest = larger(largest, fabsf(widen(x.row(row)[j])));
    }
    for (int step = 16; step > 0; step /= 2) {
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    if (lane == 0) raise(amax + blocks.of(row, begin), largest);
  }
}

/// A thread takes a piece of one column within one block.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    amax_of_columns(Rows<const T> x, std::int64_t rows, std::int64_t cols, std::int64_t piece_rows,
                    std::int64_t pieces, Blocks blocks, float* amax) {
  for (std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x; p < pieces;
       p += std::int64_t{gridDim.x} * kMapThreads) {
    const std::int64_t chunk = divide(p, cols), col = p - chunk * cols, begin = chunk * piece_rows;
    const std::int64_t end = begin + piece_rows < rows ? begin + piece_rows : rows;
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      largest = larger(largest, fabsf(widen(x.row(i)[col])));
    }
    raise(amax + blocks.of(begin, col), largest);
  }
}

Grid grid_of(std::int64_t threads) {
  return {static_cast<unsigned>(std::min(kMapBlocks, ceil_div(threads, kMapThreads))), kMapThreads};
}

/// Calls f.operator()<T>() for a type that is quantized.
template <class F>
void with_source_type(DType dtype, const F& f) {
  with_type(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) f.template operator()<T>();
  });
}

void block_amax(const KernelCtx& ctx, const BlockAmax& op, const View&) {
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  if (rows == 0 || cols == 0 || amax_of_tensor(ctx, op)) return;
  const Blocks blocks(op.block, op.x);
  float* const amax = op.amax.as<float>();
  with_source_type(op.x.dtype, [&]<class T>() {
    if (blocks.cols < 32 && blocks.across > 1) {
      const std::int64_t piece = op.block.rows == 0 ? kPieceRows : blocks.rows;
      const std::int64_t pieces = ceil_div(rows, piece) * cols;
      launch_grid(ctx, grid_of(pieces), amax_of_columns<T>, Rows<const T>(op.x), rows, cols, piece,
                  pieces, blocks, amax);
      return;
    }
    // Pieces of the only block across may have any length.
    const bool cut = blocks.across == 1 || blocks.cols % kPieceCols == 0;
    const std::int64_t piece = cut ? std::min(blocks.cols, kPieceCols) : blocks.cols;
    const std::int64_t per_row = ceil_div(cols, piece);
    launch_grid(ctx, grid_of(rows * per_row * 32), amax_of_pieces<T>, Rows<const T>(op.x), cols,
                piece, per_row, rows * per_row, blocks, amax);
  });
}

__global__ void __launch_bounds__(kMapThreads)
    make_scales(ScaleFromAmax op, const float* amax, float* scale, float* scale_inv,
                std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= count) return;
  const Scale made = op.of(amax[i]);
  scale[i] = made.scale;
  scale_inv[i] = made.scale_inv;
}

void scale_from_amax(const KernelCtx& ctx, const ScaleFromAmax& op, const View&) {
  const std::int64_t count = op.amax.numel();
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(count, kMapThreads)), kMapThreads}, make_scales,
              op, op.amax.as<float>(), op.scale.as<float>(), op.scale_inv.as<float>(), count);
}

__global__ void __launch_bounds__(kMapThreads)
    roll_history(RollAmaxHistory op, const float* amax, Rows<float> history, std::int64_t length,
                 const float* max, float* scale, float* scale_inv, std::int64_t count,
                 const UpdateDecision* decision) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= count || (decision != nullptr && decision->apply == 0)) return;
  const Scale next = op.advance(amax[i], history.row(i), length, max[i], scale[i]);
  scale[i] = next.scale;
  scale_inv[i] = next.scale_inv;
}

void roll_amax_history(const KernelCtx& ctx, const RollAmaxHistory& op, const View&) {
  const std::int64_t count = op.amax.numel();
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(count, kMapThreads)), kMapThreads}, roll_history,
              op, op.amax.as<float>(), Rows<float>(op.history), op.length(), op.max.as<float>(),
              op.scale.as<float>(), op.scale_inv.as<float>(), count,
              op.decision.defined() ? op.decision.as<const UpdateDecision>() : nullptr);
}

/// QuantizeRounding on the device.
struct Chances {
  bool stochastic;
  PhiloxKey key;
  std::uint64_t step;
  const StepScalars* scalars;  // null: `step` counts
  const std::int64_t* row_id;  // null: the row's number
  std::int64_t width, first_col;

  __device__ std::uint32_t word(std::int64_t row, std::int64_t col) const {
    const std::int64_t id = row_id == nullptr ? row : row_id[row];
    const auto index = static_cast<std::uint64_t>(id * width + first_col + col);
    const auto now = scalars == nullptr ? step : static_cast<std::uint64_t>(scalars->step);
    return word_of(philox_block(key, now, index), index % 4);
  }
};

template <class T, class Y, int V>
struct QuantizePacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  Rows<std::uint8_t> codes, transposed;
  Rows<Y> y;
  const float *scale, *scale_inv;
  double* saturated;
  NumberFormat format;
  float limit;
  Blocks blocks;
  Chances chances;

  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const auto from = load_pack<V>(x.row(row) + col);
    Pack<std::uint8_t, V> coded;
    Pack<Y, V> result{};
    const Blocks::Run run = blocks.run(row, col);
    int beyond = 0;
    for (int i = 0; i < V; ++i) {
      const std::int64_t b = run.of(blocks, row, col, i);
      const float scaled = widen(from.x[i]) * scale[b];
      beyond += fabsf(scaled) > limit ? 1 : 0;
      coded.x[i] = chances.stochastic ? encode_by_word(format, scaled, chances.word(row, col + i))
                                      : encode(format, scaled);
      if (transposed) transposed.row(col + i)[row] = coded.x[i];
      if (y) result.x[i] = narrow<Y>(decode(format, coded.x[i]) * scale_inv[b]);
    }
    if (codes) store_pack(codes.row(row) + col, coded);
    if (y) store_pack(y.row(row) + col, result);
    // Whole numbers: in whatever order they are added, the sum is the same.
    if (saturated != nullptr && beyond > 0) atomicAdd(saturated, static_cast<double>(beyond));
  }
};

/// A map over the elements of these views that knows rows and columns.
template <class... Views>
MapShape shape_in_rows(const View& first, const Views&... others) {
  MapShape shape(first, others...);
  shape.rows = first.rows();
  shape.cols = first.cols();
  if (shape.cols % shape.width != 0) shape.width = 1;
  return shape;
}

void quantize(const KernelCtx& ctx, const Quantize& op, const View&) {
  if (quantize_codes(ctx, op)) return;
  const MapShape shape = shape_in_rows(op.x, op.y, op.codes);
  const QuantizeRounding& rounding = op.rounding;
  const Chances chances{rounding.stochastic,
                        rounding.key,
                        rounding.step,
                        rounding.scalars.as<StepScalars>(),
                        rounding.row_id.as<std::int64_t>(),
                        rounding.width == 0 ? op.x.cols() : rounding.width,
                        rounding.first_col};
  const auto run = [&]<class T, class Y>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V <= kPack<T> && V <= kPack<Y>) {
        map(ctx, shape,
            QuantizePacks<T, Y, V>{Rows<const T>(op.x), Rows<std::uint8_t>(op.codes),
                                   Rows<std::uint8_t>(op.transposed), Rows<Y>(op.y),
                                   op.scale.as<float>(), op.scale_inv.as<float>(),
                                   op.saturated.as<double>(), op.format, limit_of(op.format),
                                   Blocks(op.block, op.x), chances});
      }
    });
  };
  with_source_type(op.x.dtype, [&]<class T>() {
    with_source_type(op.y.defined() ? op.y.dtype : op.x.dtype,
                     [&]<class Y>() { run.template operator()<T, Y>(); });
  });
}

template <class Y, int V>
struct DequantizePacks {
  static constexpr int kWidth = V;
  Rows<const std::uint8_t> codes;
  Rows<Y> y;
  const float* scale_inv;
  NumberFormat format;
  Blocks blocks;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const auto from = load_pack<V>(codes.row(row) + col);
    Pack<Y, V> result;
    const Blocks::Run run = blocks.run(row, col);
    for (int i = 0; i < V; ++i) {
      const std::int64_t b = run.of(blocks, row, col, i);
      result.x[i] = narrow<Y>(decode(format, from.x[i]) * scale_inv[b]);
    }
    store_pack(y.row(row) + col, result);
  }
};

void dequantize(const KernelCtx& ctx, const Dequantize& op, const View&) {
  const MapShape shape = shape_in_rows(op.y, op.codes);
  with_source_type(op.y.dtype, [&]<class Y>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V <= kPack<Y>) {
        map(ctx, shape,
            DequantizePacks<Y, V>{Rows<const std::uint8_t>(op.codes), Rows<Y>(op.y),
                                  op.scale_inv.as<float>(), op.format, Blocks(op.block, op.y)});
      }
    });
  });
}

}  // namespace

void add_quantize_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<BlockAmax, block_amax>());
  rows.push_back(row_of<ScaleFromAmax, scale_from_amax>());
  rows.push_back(row_of<RollAmaxHistory, roll_amax_history>());
  rows.push_back(row_of<Quantize, quantize>());
  rows.push_back(row_of<Dequantize, dequantize>());
}

}  // namespace llmtrain::kernels::cuda
