#include "kernels/quantize/quantize.hpp"

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels::reference {

namespace {

// Index of the block that an element lies in.
std::int64_t block_of(const BlockShape& block, const View& matrix, std::int64_t row,
                      std::int64_t col) {
  const std::int64_t down = block.rows == 0 ? 0 : row / block.rows;
  const std::int64_t across = block.cols == 0 ? 0 : col / block.cols;
  return down * block.across(matrix.cols()) + across;
}

void block_amax(const KernelCtx&, const BlockAmax& op, const View&) {
  float* const amax = op.amax.as<float>();
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        const float magnitude = std::abs(widen(op.x.row<T>(i)[j]));
        float& largest = amax[block_of(op.block, op.x, i, j)];
        if (magnitude > largest) largest = magnitude;
      }
    }
  });
}

void scale_from_amax(const KernelCtx&, const ScaleFromAmax& op, const View&) {
  for (std::int64_t i = 0; i < op.amax.numel(); ++i) {
    const Scale scale = op.of(op.amax.as<float>()[i]);
    op.scale.as<float>()[i] = scale.scale;
    op.scale_inv.as<float>()[i] = scale.scale_inv;
  }
}

void roll_amax_history(const KernelCtx&, const RollAmaxHistory& op, const View&) {
  if (op.decision.defined() && !op.decision.as<UpdateDecision>()->applies()) return;
  for (std::int64_t i = 0; i < op.amax.numel(); ++i) {
    float& scale = op.scale.as<float>()[i];
    float* const earlier = op.length() == 0 ? nullptr : op.history.row<float>(i);
    const Scale next =
        op.advance(op.amax.as<float>()[i], earlier, op.length(), op.max.as<float>()[i], scale);
    scale = next.scale;
    op.scale_inv.as<float>()[i] = next.scale_inv;
  }
}

void quantize(const KernelCtx&, const Quantize& op, const View&) {
  const std::array<float, 256> values = decode_table(op.format);
  const float limit = limit_of(op.format);
  double saturated = 0;
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      const std::uint64_t first = op.rounding.stochastic ? op.index_of_row(i) : 0;
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        const std::int64_t b = block_of(op.block, op.x, i, j);
        const float scaled = widen(op.x.row<T>(i)[j]) * op.scale.as<float>()[b];
        if (std::abs(scaled) > limit) saturated += 1;
        const std::uint8_t code =
            op.rounding.stochastic
                ? encode_by_word(op.format, scaled,
                                 philox_word(op.rounding.key, op.rounding.step_now(),
                                             first + static_cast<std::uint64_t>(j)))
                : encode(op.format, scaled);
        if (op.codes.defined()) op.codes.row<std::uint8_t>(i)[j] = code;
        if (op.transposed.defined()) op.transposed.row<std::uint8_t>(j)[i] = code;
        if (!op.y.defined()) continue;
        const float value = values[code] * op.scale_inv.as<float>()[b];
        with_fast_type(op.y.dtype, [&]<class Y>() { op.y.row<Y>(i)[j] = narrow<Y>(value); });
      }
    }
  });
  if (op.saturated.defined()) *op.saturated.as<double>() += saturated;
}

void dequantize(const KernelCtx&, const Dequantize& op, const View&) {
  const std::array<float, 256> values = decode_table(op.format);
  with_fast_type(op.y.dtype, [&]<class Y>() {
    for (std::int64_t i = 0; i < op.y.rows(); ++i) {
      for (std::int64_t j = 0; j < op.y.cols(); ++j) {
        const float scale_inv = op.scale_inv.as<float>()[block_of(op.block, op.y, i, j)];
        op.y.row<Y>(i)[j] = narrow<Y>(values[op.codes.row<std::uint8_t>(i)[j]] * scale_inv);
      }
    }
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

}  // namespace llmtrain::kernels::reference
