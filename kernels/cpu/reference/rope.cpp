#include "kernels/cpu/reference/rope.hpp"

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rope_positions.hpp"

namespace llmtrain::kernels {

void check_positions(std::string_view kernel, const View& position, const View& cosine) {
  const auto* positions = position.as<std::int32_t>();
  for (std::int64_t i = 0; i < position.numel(); ++i) {
    require(positions[i] >= 0 && positions[i] < cosine.rows(),
            "{}: row {} has position {}, but the tables hold {} positions", kernel, i, positions[i],
            cosine.rows());
  }
}

namespace reference {

namespace {

template <class T>
void turn(const Rope& op, const T* x, T* y, std::int64_t position) {
  using W = Wide<T>;
  const std::int64_t half = op.rotary_dim / 2;
  const W* cosine = op.cosine.as<W>() + position * half;
  const W* sine = op.sine.as<W>() + position * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const W a = widen(x[i]);
    const W b = widen(x[i + half]);
    const W s = op.inverse ? -sine[i] : sine[i];
    y[i] = narrow<T>(a * cosine[i] - b * s);
    y[i + half] = narrow<T>(b * cosine[i] + a * s);
  }
  for (std::int64_t i = op.rotary_dim; i < op.head_dim; ++i) y[i] = x[i];
}

}  // namespace

void rope(const KernelCtx&, const Rope& op, const View&) {
  check_positions(op.name, op.position, op.cosine);
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      const std::int64_t position = op.position.as<std::int32_t>()[i];
      for (std::int64_t c = 0; c < op.x.cols(); c += op.head_dim) {
        turn(op, op.x.row<T>(i) + c, op.y.row<T>(i) + c, position);
      }
    }
  });
}

}  // namespace reference

}  // namespace llmtrain::kernels
