#include "kernels/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/update_scalars.hpp"
#include "lib/base/tree_sum.hpp"

namespace llmtrain::kernels::reference {

namespace {

template <class T>
double squared_norm_of_block(const T* g, std::int64_t count) {
  std::array<T, SquaredNorm::kLanes> lanes{};
  for (std::int64_t e = 0; e < count; ++e) lanes[e % SquaredNorm::kLanes] += g[e] * g[e];
  for (int width = SquaredNorm::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// Runs f.operator()<T>() for the FP32 or FP64 of a master parameter.
template <class F>
void with_master_type(DType dtype, const F& f) {
  if (dtype == DType::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

void squared_norm(const KernelCtx&, const SquaredNorm& op, const View&) {
  with_master_type(op.g.dtype, [&]<class T>() {
    std::vector<double> blocks;
    for (std::int64_t begin = 0; begin < op.g.numel(); begin += SquaredNorm::kBlock) {
      const std::int64_t count = std::min(SquaredNorm::kBlock, op.g.numel() - begin);
      blocks.push_back(squared_norm_of_block(op.g.as<T>() + begin, count));
    }
    *op.out.as<double>() = tree_sum(blocks);
  });
}

void clip_by_value(const KernelCtx&, const ClipByValue& op, const View&) {
  with_master_type(op.g.dtype, [&]<class T>() {
    const auto limit = static_cast<T>(op.limit);
    T* g = op.g.as<T>();
    for (std::int64_t i = 0; i < op.g.numel(); ++i) {
      g[i] = std::min(std::max(g[i], -limit), limit);  // in this order a NaN stays one
    }
  });
}

template <class T>
void write_copy(const View& copy, std::int64_t i, T value) {
  if (!copy.defined()) return;
  if (copy.dtype == DType::bf16) {
    copy.as<bf16>()[i] = narrow<bf16>(value);
  } else {
    copy.as<float>()[i] = static_cast<float>(value);
  }
}

void decide_update(const KernelCtx&, const DecideUpdate& op, const View& workspace) {
  auto* const sums = workspace.as<double>();
  const auto count = static_cast<std::size_t>(op.squares.numel());
  std::copy_n(op.squares.as<double>(), count, sums);
  op.decide(tree_sum({sums, count}), op.loss_sum.defined() ? *op.loss_sum.as<double>() : 0,
            op.lr_now(), *op.decision.as<UpdateDecision>());
}

void adam_update(const KernelCtx&, const AdamUpdate& op, const View&) {
  const UpdateDecision& decision = *op.to.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.to.parameter.dtype, [&]<class T>() {
    const AdamScalars<T> s(op, decision);
    T* parameter = op.to.parameter.as<T>();
    T* m = op.m.as<T>();
    T* v = op.v.as<T>();
    for (std::int64_t i = 0; i < op.to.parameter.numel(); ++i) {
      T g = op.to.gradient.as<T>()[i] * s.grad_scale;
      T p = parameter[i];
      if (op.decoupled) {
        p *= s.decay;
      } else {
        g += s.weight_decay * p;
      }
      m[i] = s.beta1 * m[i] + s.one_minus_beta1 * g;
      v[i] = s.beta2 * v[i] + s.one_minus_beta2 * g * g;
      p -= s.step_size * m[i] / (std::sqrt(v[i]) / s.sqrt_bias_correction2 + s.eps);
      parameter[i] = p;
      write_copy(op.to.compute_copy, i, p);
    }
  });
}

void sgd_update(const KernelCtx&, const SgdUpdate& op, const View&) {
  const UpdateDecision& decision = *op.to.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.to.parameter.dtype, [&]<class T>() {
    const SgdScalars<T> s(op, decision);
    T* parameter = op.to.parameter.as<T>();
    for (std::int64_t i = 0; i < op.to.parameter.numel(); ++i) {
      T g = op.to.gradient.as<T>()[i] * s.grad_scale;
      g += s.weight_decay * parameter[i];
      T update = g;
      if (op.momentum_buffer.defined()) {
        T& b = op.momentum_buffer.as<T>()[i];
        b = s.first ? g : s.momentum * b + s.one_minus_dampening * g;
        update = op.nesterov ? g + s.momentum * b : b;
      }
      parameter[i] -= s.lr * update;
      write_copy(op.to.compute_copy, i, parameter[i]);
    }
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, squared_norm>());
  rows.push_back(row_of<ClipByValue, clip_by_value>());
  rows.push_back(row_of<DecideUpdate, decide_update>());
  rows.push_back(row_of<AdamUpdate, adam_update>());
  rows.push_back(row_of<SgdUpdate, sgd_update>());
}

}  // namespace llmtrain::kernels::reference
