// Activation functions: one pass over memory each, in packs of 16 bytes where alignment allows.
#include "kernels/activations.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/elementwise.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// A float whose quotients and exponentials are two units in the last place off: what becomes 16
/// bits cannot tell, and exact ones took longer than the memory.
struct Quick {
  float value;

  __device__ __forceinline__ Quick(double x) : value(static_cast<float>(x)) {}
  __device__ __forceinline__ Quick(float x) : value(x) {}
  __device__ __forceinline__ Quick(int x) : value(static_cast<float>(x)) {}
  __device__ __forceinline__ Quick operator-() const { return -value; }
  __device__ friend __forceinline__ Quick operator+(Quick a, Quick b) { return a.value + b.value; }
  __device__ friend __forceinline__ Quick operator-(Quick a, Quick b) { return a.value - b.value; }
  __device__ friend __forceinline__ Quick operator*(Quick a, Quick b) { return a.value * b.value; }
  __device__ friend __forceinline__ Quick operator/(Quick a, Quick b) {
    return divide_fast(a.value, b.value);
  }
  __device__ friend __forceinline__ bool operator<(Quick a, Quick b) { return a.value < b.value; }
  __device__ friend __forceinline__ bool operator>(Quick a, Quick b) { return a.value > b.value; }
  __device__ friend __forceinline__ Quick exp(Quick x) {
    constexpr float kLog2e = 1.44269504088896340736f;
    return exp2_fast(x.value * kLog2e);
  }
  __device__ friend __forceinline__ Quick tanh(Quick x) { return std::tanh(x.value); }
  __device__ friend __forceinline__ Quick erf(Quick x) { return std::erf(x.value); }
};
/// In which a function of T is computed.
template <class T>
using Argument = std::conditional_t<sizeof(T) == 2, Quick, Wide<T>>;

template <class X>
__device__ X select(bool condition, X yes, X no) {
  return condition ? yes : no;
}

template <class W>
struct ValueAndSlope {
  W value, slope;
};

template <Activation activation, class T>
__device__ __forceinline__ ValueAndSlope<Wide<T>> evaluate(Wide<T> at) {
  using std::erf, std::exp, std::tanh;
  using X = Argument<T>;
  const X x = at;
  X y = 0;
  X slope = 0;
#define ACTIVATION(id, names, ...)              \
  if constexpr (activation == Activation::id) { \
    __VA_ARGS__                                 \
  }
#include "kernels/activation_table.inc"
#undef ACTIVATION
  if constexpr (std::is_same_v<X, Quick>) {
    return {y.value, slope.value};
  } else {
    return {y, slope};
  }
}

/// Calls f.operator()<activation>().
template <class F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
#define ACTIVATION(id, names, ...) \
  case Activation::id:             \
    return f.template operator()<Activation::id>();
#include "kernels/activation_table.inc"
#undef ACTIVATION
  }
}

template <Activation activation, class T, int V>
struct ActivationPacks {
  static constexpr int kWidth = V;
  Rows<const T> x, up;
  Rows<T> y;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const auto bits = load_bits<V>(x.row(row) + col);
    Wide<T> value[V], factor[V] = {};
    if (up) widen_bits<T>(load_bits<V>(up.row(row) + col), factor);
    widen_bits<T>(bits, value);
    for (int i = 0; i < V; ++i) {
      value[i] = evaluate<activation, T>(value[i]).value;
      if (up) value[i] *= factor[i];
    }
    store_pack(y.row(row) + col, narrow_bits<T>(value));
  }
};

void activation_forward(const KernelCtx& ctx, const ActivationForward& op, const View&) {
  const MapShape shape(op.x, op.up, op.y);
  with_type(op.x.dtype, [&]<class T>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V == 1 || V == kPack<T>) {
        with_activation(op.activation, [&]<Activation activation>() {
          map(ctx, shape,
              ActivationPacks<activation, T, V>{Rows<const T>(op.x), Rows<const T>(op.up),
                                                Rows<T>(op.y)});
        });
      }
    });
  });
}

template <Activation activation, class T, int V>
struct ActivationGradientPacks {
  static constexpr int kWidth = V;
  Rows<const T> x, up, dy;
  Rows<T> dx, dup;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const auto bits = load_bits<V>(x.row(row) + col), dbits = load_bits<V>(dy.row(row) + col);
    Wide<T> to_x[V], gradient[V], factor[V] = {}, to_up[V];
    if (up) widen_bits<T>(load_bits<V>(up.row(row) + col), factor);
    widen_bits<T>(bits, to_x);
    widen_bits<T>(dbits, gradient);
    for (int i = 0; i < V; ++i) {
      const auto f = evaluate<activation, T>(to_x[i]);
      to_x[i] = gradient[i] * f.slope;
      if (up) {
        to_x[i] *= factor[i];
        to_up[i] = gradient[i] * f.value;
      }
    }
    store_pack(dx.row(row) + col, narrow_bits<T>(to_x));
    if (up) store_pack(dup.row(row) + col, narrow_bits<T>(to_up));
  }
};

void activation_backward(const KernelCtx& ctx, const ActivationBackward& op, const View&) {
  const MapShape shape(op.x, op.up, op.dy, op.dx, op.dup);
  with_type(op.x.dtype, [&]<class T>() {
    with_width(shape.width, [&]<int V>() {
      if constexpr (V == 1 || V == kPack<T>) {
        with_activation(op.activation, [&]<Activation activation>() {
          map(ctx, shape,
              ActivationGradientPacks<activation, T, V>{Rows<const T>(op.x), Rows<const T>(op.up),
                                                        Rows<const T>(op.dy), Rows<T>(op.dx),
                                                        Rows<T>(op.dup)});
        });
      }
    });
  });
}

}  // namespace

void add_activation_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ActivationForward, activation_forward>());
  rows.push_back(row_of<ActivationBackward, activation_backward>());
}

}  // namespace llmtrain::kernels::cuda
