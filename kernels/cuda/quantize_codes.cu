// Tensors of one scale at the speed of memory: their amax, and codes of e4m3 and e5m2 by the
// hardware's conversion, as they are and transposed. The bits are those of quantize.cu.
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/quantize_codes.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr bool is_whole(const BlockShape& block) { return block.rows == 0 && block.cols == 0; }

// ---- The largest magnitude

constexpr std::int64_t kAmaxBlocks = 2048;
/// Packs that a thread has under way.
constexpr int kAmaxPacks = 4;

/// Blocks take turns of kAmaxPacks packs a thread, and each raises *amax once. NaNs are left out:
/// fmaxf() prefers the other number.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    amax_kernel(Rows<const T> x, std::int64_t packs, std::int64_t packs_per_row, float* amax) {
  constexpr int V = kPack<T>;
  __shared__ float of_warp[kMapThreads / 32];
  float largest = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * (kMapThreads * kAmaxPacks) + threadIdx.x;
       first < packs; first += std::int64_t{gridDim.x} * (kMapThreads * kAmaxPacks)) {
    Bits<T, V> from[kAmaxPacks] = {};
    for (int u = 0; u < kAmaxPacks; ++u) {
      const std::int64_t i = first + u * kMapThreads;
      if (i >= packs) continue;
      const std::int64_t row = packs == packs_per_row ? 0 : divide(i, packs_per_row);
      from[u] = load_bits<V>(x.row(row) + (i - row * packs_per_row) * V);
    }
    for (int u = 0; u < kAmaxPacks; ++u) {
      float values[V];
      widen_bits<T, V>(from[u], values);
      for (int k = 0; k < V; ++k) largest = fmaxf(largest, fabsf(values[k]));
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const float other : of_warp) largest = fmaxf(largest, other);
  // Of numbers that are not negative the larger has the larger bits.
  if (largest > 0) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(largest));
}

// ---- Codes

/// Neighbours of a row that become two words of codes.
constexpr int kEight = 8;

/// As they lie in memory.
template <class T>
struct Eight {
  static constexpr int kPacks = kEight / kPack<T>;
  Bits<T, kPack<T>> packs[kPacks];

  __device__ explicit Eight(const T* x) {
    for (int p = 0; p < kPacks; ++p) packs[p] = load_bits<kPack<T>>(x + p * kPack<T>);
  }
  Eight() = default;
  __device__ void times(float scale, float (&values)[kEight]) const {
    for (int p = 0; p < kPacks; ++p) {
      float some[kPack<T>];
      widen_bits<T, kPack<T>>(packs[p], some);
      for (int k = 0; k < kPack<T>; ++k) values[p * kPack<T> + k] = some[k] * scale;
    }
  }
};

/// How numbers become codes, and where those are counted that do not fit.
template <bool e5m2>
struct Coder {
  static constexpr float kLimit = limit_of(e5m2 ? kE5M2 : kE4M3);
  float scale;
  int beyond = 0;

  __device__ explicit Coder(const float* from) : scale(*from) {}

  /// The hardware's conversion; where numbers are beyond the format's limit, or NaN, which are few,
  /// it is not asked: what it makes of these is nobody's promise.
  template <class T>
  __device__ Words<2> operator()(const Eight<T>& from) {
    float x[kEight];
    from.times(scale, x);
    std::uint32_t largest = 0;  // a NaN's bits are above an infinity's
    for (int k = 0; k < kEight; ++k) largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
    Words<2> codes = {};
    if (largest > __float_as_uint(kLimit)) {
      constexpr NumberFormat kFormat = e5m2 ? kE5M2 : kE4M3;
      for (int k = 0; k < kEight; ++k) {
        beyond += fabsf(x[k]) > kLimit ? 1 : 0;
        codes.x[k / 4] |= std::uint32_t{encode(kFormat, x[k])} << (8 * (k % 4));
      }
      return codes;
    }
    for (int k = 0; k < kEight; k += 2) {
      codes.x[k / 4] |= fp8_pair<e5m2>(x[k], x[k + 1]) << (8 * (k % 4));
    }
    return codes;
  }
  __device__ void count(double* saturated) const {
    // Whole numbers: in whatever order they are added, the sum is the same.
    if (saturated != nullptr && beyond > 0) atomicAdd(saturated, static_cast<double>(beyond));
  }
};

template <class T, bool e5m2>
struct CodePacks {
  static constexpr int kWidth = 2 * kEight;
  Rows<const T> x;
  Rows<std::uint8_t> codes;
  const float* scale;
  double* saturated;

  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const T* const at = x.row(row) + col;
    const Eight<T> first(at), second(at + kEight);
    Coder<e5m2> coder(scale);
    const Words<2> low = coder(first), high = coder(second);
    *aligned(reinterpret_cast<Words<4>*>(codes.row(row) + col)) = {
        {low.x[0], low.x[1], high.x[0], high.x[1]}};
    coder.count(saturated);
  }
};

/// A block's part of a matrix. A thread has four rows of eight columns: a warp reads whole lines of
/// 128 bytes of bf16.
constexpr int kTileRows = 128, kTileCols = 64, kTileThreads = 256;
constexpr int kQuad = 4;
static_assert(kTileThreads * kQuad * kEight == kTileRows * kTileCols);

/// Byte k of rows 0 to 3 becomes word k.
__device__ __forceinline__ Words<4> turned(std::uint32_t r0, std::uint32_t r1, std::uint32_t r2,
                                           std::uint32_t r3) {
  const std::uint32_t low01 = bytes_of(r0, r1, 0x5140), high01 = bytes_of(r0, r1, 0x7362);
  const std::uint32_t low23 = bytes_of(r2, r3, 0x5140), high23 = bytes_of(r2, r3, 0x7362);
  return {{bytes_of(low01, low23, 0x5410), bytes_of(low01, low23, 0x7632),
           bytes_of(high01, high23, 0x5410), bytes_of(high01, high23, 0x7632)}};
}

/// The codes of a tile, transposed: of each column kTileRows bytes, in chunks of 16 whose places
/// are exchanged by the column's group of eight. So eight groups of a warp write to all banks, and
/// eight neighbouring chunks are read from all.
struct TurnedTile {
  static constexpr int kChunks = kTileRows / 16;
  std::uint32_t words[kTileCols * kTileRows / 4];

  __device__ std::uint32_t* chunk(int col, int number) {
    return words + col * (kTileRows / 4) + ((number ^ (col / kEight)) % kChunks) * 4;
  }
};

template <class T, bool e5m2>
__global__ void __launch_bounds__(kTileThreads)
    code_tiles(Rows<const T> x, Rows<std::uint8_t> codes, Rows<std::uint8_t> transposed,
               std::int64_t rows, std::int64_t cols, std::int64_t tiles_across, const float* scale,
               double* saturated) {
  __shared__ __align__(16) TurnedTile tile;
  const std::int64_t down = divide(blockIdx.x, tiles_across);
  const std::int64_t first_row = down * kTileRows;
  const std::int64_t first_col = (blockIdx.x - down * tiles_across) * kTileCols;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane % 8, quad = 4 * warp + lane / 8;
  const std::int64_t row = first_row + kQuad * quad, col = first_col + kEight * group;
  if (row < rows && col < cols) {
    Eight<T> from[kQuad];
    for (int i = 0; i < kQuad; ++i) from[i] = Eight<T>(x.row(row + i) + col);
    Coder<e5m2> coder(scale);
    Words<2> coded[kQuad];
    for (int i = 0; i < kQuad; ++i) {
      coded[i] = coder(from[i]);
      if (codes) *aligned(reinterpret_cast<Words<2>*>(codes.row(row + i) + col)) = coded[i];
    }
    coder.count(saturated);
    for (int half = 0; half < 2; ++half) {
      const Words<4> columns =
          turned(coded[0].x[half], coded[1].x[half], coded[2].x[half], coded[3].x[half]);
      for (int k = 0; k < 4; ++k) {
        tile.chunk(kEight * group + 4 * half + k, warp)[lane / 8] = columns.x[k];
      }
    }
  }
  __syncthreads();
  for (int v = static_cast<int>(threadIdx.x); v < kTileCols * TurnedTile::kChunks;
       v += kTileThreads) {
    const int of_col = v / TurnedTile::kChunks, number = v % TurnedTile::kChunks;
    if (first_col + of_col >= cols || first_row + 16 * number >= rows) continue;
    *aligned(
        reinterpret_cast<Words<4>*>(transposed.row(first_col + of_col) + first_row + 16 * number)) =
        *aligned(reinterpret_cast<const Words<4>*>(tile.chunk(of_col, number)));
  }
}

template <class T, bool e5m2>
void run_tiles(const KernelCtx& ctx, const Quantize& op) {
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  const std::int64_t across = ceil_div(cols, kTileCols), down = ceil_div(rows, kTileRows);
  launch_grid(ctx, {static_cast<unsigned>(across * down), kTileThreads}, code_tiles<T, e5m2>,
              Rows<const T>(op.x), Rows<std::uint8_t>(op.codes), Rows<std::uint8_t>(op.transposed),
              rows, cols, across, op.scale.as<const float>(), op.saturated.as<double>());
}

template <class T, bool e5m2>
void run_packs(const KernelCtx& ctx, const Quantize& op, const MapShape& shape) {
  map(ctx, shape,
      CodePacks<T, e5m2>{Rows<const T>(op.x), Rows<std::uint8_t>(op.codes),
                         op.scale.as<const float>(), op.saturated.as<double>()});
}

/// Calls f.operator()<T, e5m2>().
template <class F>
void with_kind(const Quantize& op, const F& f) {
  with_type(op.x.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      op.format == kE5M2 ? f.template operator()<T, true>() : f.template operator()<T, false>();
    }
  });
}

}  // namespace

bool amax_of_tensor(const KernelCtx& ctx, const BlockAmax& op) {
  if (!is_whole(op.block)) return false;
  const MapShape shape(op.x);
  const auto pack = static_cast<std::int64_t>(16 / size_of(op.x.dtype));
  if (shape.cols % pack != 0 || !rows_aligned(op.x, 16)) return false;
  const std::int64_t per_row = shape.cols / pack, packs = shape.rows * per_row;
  const auto blocks = static_cast<unsigned>(
      std::min({kMapBlocks, kAmaxBlocks, ceil_div(packs, kMapThreads * kAmaxPacks)}));
  with_type(op.x.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      launch_grid(ctx, {blocks, kMapThreads}, amax_kernel<T>, Rows<const T>(op.x), packs, per_row,
                  op.amax.as<float>());
    }
  });
  return true;
}

bool quantize_codes(const KernelCtx& ctx, const Quantize& op) {
  const bool known = op.format == kE4M3 || op.format == kE5M2;
  if (!known || !is_whole(op.block) || op.rounding.stochastic || op.y.defined()) return false;
  if (!rows_aligned(op.x, 16) || !rows_aligned(op.codes, 16)) return false;
  if (op.transposed.defined()) {
    if (op.x.rows() % 16 != 0 || op.x.cols() % kEight != 0) return false;
    if (!rows_aligned(op.transposed, 16)) return false;
    with_kind(op, [&]<class T, bool e5m2>() { run_tiles<T, e5m2>(ctx, op); });
    return true;
  }
  const MapShape shape(op.x, op.codes);
  if (shape.cols % (2 * kEight) != 0) return false;
  with_kind(op, [&]<class T, bool e5m2>() { run_packs<T, e5m2>(ctx, op, shape); });
  return true;
}

}  // namespace llmtrain::kernels::cuda
