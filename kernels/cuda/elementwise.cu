// Sums, casts and fills: one pass over memory each, in packs of 16 bytes where alignment allows.
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, int V>
struct AddPacks {
  static constexpr int kWidth = V;
  Rows<const T> a, b;
  Rows<T> y;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    Wide<T> sum[V], other[V];
    widen_bits<T>(load_bits<V>(a.row(row) + col), sum);
    widen_bits<T>(load_bits<V>(b.row(row) + col), other);
    for (int i = 0; i < V; ++i) sum[i] += other[i];
    store_pack(y.row(row) + col, narrow_bits<T>(sum));
  }
};

void add(const KernelCtx& ctx, const Add& op, const View&) {
  const MapShape shape(op.a, op.b, op.y);
  with_type(op.a.dtype, [&]<class T>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V <= kPack<T>) {
        map(ctx, shape, AddPacks<T, V>{Rows<const T>(op.a), Rows<const T>(op.b), Rows<T>(op.y)});
      }
    });
  });
}

/// A factor of which a part may stand on the device.
struct DeviceScale {
  DecidedScale scale;
  // Where given: divided by max(sqrt(*squared_norm), eps).
  const double* squared_norm = nullptr;
  double eps = 0;
  // Where given: made of this decision, which must apply for anything to happen.
  const UpdateDecision* decision = nullptr;

  __device__ bool applies() const { return decision == nullptr || decision->apply != 0; }
  __device__ double value() const {
    if (decision != nullptr) return scale.of(*decision);
    return squared_norm == nullptr ? scale.value : scale.value / fmax(sqrt(*squared_norm), eps);
  }
};

template <class X, class Y, int V>
struct ScaleCastPacks {
  static constexpr int kWidth = V;
  using W = std::common_type_t<Wide<X>, Wide<Y>>;
  Rows<const X> x;
  Rows<Y> y;
  DeviceScale scale;
  bool accumulate;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    if (!scale.applies()) return;
    const auto factor = static_cast<W>(scale.value());
    const auto from = load_pack<V>(x.row(row) + col);
    Y* const to = y.row(row) + col;
    Pack<Y, V> before;
    if (accumulate) before = load_pack<V>(to);
    W result[V];
    for (int i = 0; i < V; ++i) {
      const W value = factor * static_cast<W>(widen(from.x[i]));
      result[i] = accumulate ? static_cast<W>(widen(before.x[i])) + value : value;
    }
    store_pack(to, narrow_bits<Y>(result));
  }
};

void scale_with(const KernelCtx& ctx, const View& x, const View& y, bool accumulate,
                const DeviceScale& scale) {
  const MapShape shape(x, y);
  with_type(x.dtype, [&]<class X>() {
    with_type(y.dtype, [&]<class Y>() {
      with_width(shape.width, [&]<int V>() {
        if constexpr (V <= kPack<X> && V <= kPack<Y>) {
          map(ctx, shape, ScaleCastPacks<X, Y, V>{Rows<const X>(x), Rows<Y>(y), scale, accumulate});
        }
      });
    });
  });
}

void scale_cast(const KernelCtx& ctx, const ScaleCast& op, const View&) {
  scale_with(ctx, op.x, op.y, op.accumulate, {.scale = {.value = op.scale}});
}

void normalize(const KernelCtx& ctx, const Normalize& op, const View&) {
  scale_with(
      ctx, op.x, op.y, false,
      {.scale = {.value = op.scale}, .squared_norm = op.squared_norm.as<double>(), .eps = op.eps});
}

void scale_update(const KernelCtx& ctx, const ScaleUpdate& op, const View&) {
  scale_with(ctx, op.x, op.y, op.accumulate,
             {.scale = op.scale, .decision = op.decision.as<UpdateDecision>()});
}

template <class T, int V>
struct FillPacks {
  static constexpr int kWidth = V;
  Rows<T> y;
  double value;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    Pack<T, V> all;
    for (int i = 0; i < V; ++i) all.x[i] = narrow<T>(value);
    store_pack(y.row(row) + col, all);
  }
};

void fill(const KernelCtx& ctx, const Fill& op, const View&) {
  MapShape shape(op.y);
  if (op.y.dtype == DType::u8) {  // codes of optimizers, once
    shape.width = 1;
    return map(ctx, shape, FillPacks<std::uint8_t, 1>{Rows<std::uint8_t>(op.y), op.value});
  }
  with_type(op.y.dtype, [&]<class T>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V <= kPack<T>) map(ctx, shape, FillPacks<T, V>{Rows<T>(op.y), op.value});
    });
  });
}

}  // namespace

void add_elementwise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Add, add>());
  rows.push_back(row_of<ScaleCast, scale_cast>());
  rows.push_back(row_of<Normalize, normalize>());
  rows.push_back(row_of<ScaleUpdate, scale_update>());
  rows.push_back(row_of<Fill, fill>());
}

}  // namespace llmtrain::kernels::cuda
