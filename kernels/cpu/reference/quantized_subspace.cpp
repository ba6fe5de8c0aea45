#include "kernels/quantized_subspace.hpp"

#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void subspace_decisions(const KernelCtx&, const SubspaceDecisions& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  *op.step.as<UpdateDecision>() = SubspaceDecisions::at_unit_rate(decision);
  *op.choice.as<UpdateDecision>() = SubspaceDecisions::of_choice(decision, op.gap.as<double>()[0]);
}

/// Of two vectors of n elements, whose elements lie `stride` and 1 apart.
template <class T>
double cosine(const T* a, std::int64_t stride, const T* b, std::int64_t n) {
  double aa = 0, bb = 0, ab = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(a[i * stride]), y = static_cast<double>(b[i]);
    aa += x * x;
    bb += y * y;
    ab += x * y;
  }
  constexpr double kLeast = FollowSubspace::kLeastLength;
  return ab / (std::max(std::sqrt(aa), kLeast) * std::max(std::sqrt(bb), kLeast));
}

/// A queue's mean, or kNone while it is not full.
double mean_of(const double* similarities, std::int64_t count) {
  if (similarities[0] == FollowSubspace::kNone) return FollowSubspace::kNone;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += similarities[i];
  return sum / static_cast<double>(count);
}

void follow_subspace(const KernelCtx&, const FollowSubspace& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const std::int64_t n = op.leading.numel(), queue = op.similarities.numel();
  with_master_type(op.dtype(), [&]<class T>() {
    T* vectors = op.vectors.as<T>();
    T* leading = op.leading.as<T>();
    if (decision.updates > 1) {
      double* similarities = op.similarities.as<double>();
      std::copy(similarities + 1, similarities + queue, similarities);
      const double turned = cosine(vectors, op.stride(), leading, n);
      for (std::int64_t i = 0; turned < 0 && i < n; ++i) vectors[i * op.stride()] *= -1;
      similarities[queue - 1] = std::abs(turned);
      const double mean = mean_of(similarities, queue);
      double& gap = *op.gap.as<double>();
      if (mean != FollowSubspace::kNone && mean >= op.threshold) gap = std::floor(gap * op.growth);
    }
    for (std::int64_t i = 0; i < n; ++i) leading[i] = vectors[i * op.stride()];
  });
}

template <class T>
void quantize_group(const T* x, std::int64_t count, float levels, std::uint8_t* codes,
                    float* scale_of, std::uint8_t* zero_of) {
  auto smallest = static_cast<float>(x[0]), largest = smallest;
  for (std::int64_t i = 1; i < count; ++i) {
    smallest = std::min(smallest, static_cast<float>(x[i]));
    largest = std::max(largest, static_cast<float>(x[i]));
  }
  const auto clamped = [&](float code) { return std::clamp(code, 0.0F, levels); };
  const float scale = std::max(largest - smallest, AffineQuantize::kLeastRange) / levels;
  const float zero = clamped(-std::nearbyint(smallest / scale));
  for (std::int64_t i = 0; i < count; ++i) {
    const float code = std::nearbyint(static_cast<float>(x[i]) / scale) + zero;
    codes[i] = static_cast<std::uint8_t>(clamped(code));
  }
  *scale_of = scale;
  *zero_of = static_cast<std::uint8_t>(zero);
}

void affine_quantize(const KernelCtx&, const AffineQuantize& op, const View&) {
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  const auto levels = static_cast<float>((1 << op.bits) - 1);
  with_master_type(op.dtype(), [&]<class T>() {
    for (std::int64_t g = 0; g < op.scales.numel(); ++g) {
      const std::int64_t begin = g * op.group, count = std::min(op.group, op.x.numel() - begin);
      quantize_group(op.x.as<T>() + begin, count, levels, op.codes.as<std::uint8_t>() + begin,
                     op.scales.as<float>() + g, op.zeros.as<std::uint8_t>() + g);
    }
  });
}

void affine_dequantize(const KernelCtx&, const AffineDequantize& op, const View&) {
  with_master_type(op.dtype(), [&]<class T>() {
    for (std::int64_t g = 0; g < op.scales.numel(); ++g) {
      const std::int64_t end = std::min((g + 1) * op.group, op.y.numel());
      const auto scale = static_cast<T>(op.scales.as<float>()[g]);
      const int zero = op.zeros.as<std::uint8_t>()[g];
      for (std::int64_t i = g * op.group; i < end; ++i) {
        op.y.as<T>()[i] = scale * static_cast<T>(op.codes.as<std::uint8_t>()[i] - zero);
      }
    }
  });
}

}  // namespace

void add_quantized_subspace_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SubspaceDecisions, subspace_decisions>());
  rows.push_back(row_of<FollowSubspace, follow_subspace>());
  rows.push_back(row_of<AffineQuantize, affine_quantize>());
  rows.push_back(row_of<AffineDequantize, affine_dequantize>());
}

}  // namespace llmtrain::kernels::reference
