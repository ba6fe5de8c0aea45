#pragma once
/// The masters of an update as the reference reads and writes them.

#include "kernels/optimizer.hpp"
#include "lib/tensor/split_master.hpp"

namespace llmtrain::kernels::reference {

/// Runs f.operator()<T>() for the FP32 or FP64 of a master or a gradient.
template <class F>
void with_master_type(DType dtype, const F& f) {
  if (dtype == DType::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// The masters of an update, in whichever form they are.
template <class T>
class Masters {
 public:
  /// `update`: the number of this one.
  Masters(const UpdateOperands& to, std::uint64_t update) : to_(to), update_(update) {}

  T get(std::int64_t i) const {
    if (to_.parameter.defined()) return to_.parameter.as<T>()[i];
    const bf16 copy = to_.compute_copy.as<bf16>()[i];
    if (!to_.remainder.defined()) return static_cast<T>(to_float(copy));
    return static_cast<T>(join_master({copy, to_.remainder.as<std::uint16_t>()[i]}));
  }
  /// The master and its copy.
  void put(std::int64_t i, T value) const {
    if (to_.parameter.defined()) to_.parameter.as<T>()[i] = value;
    if (!to_.compute_copy.defined()) return;
    const auto rounded = static_cast<float>(value);
    if (to_.compute_copy.dtype == DType::f32) {
      to_.compute_copy.as<float>()[i] = rounded;
      return;
    }
    if (to_.compute_copy.dtype == DType::f16) {
      to_.compute_copy.as<f16>()[i] = to_f16(rounded);
      return;
    }
    if (to_.rounding.on) {
      const std::uint32_t word = philox_word(to_.rounding.key, update_, to_.rounding.index(i));
      to_.compute_copy.as<bf16>()[i] = round_stochastically(rounded, word);
      return;
    }
    const MasterParts parts = split_master(rounded);
    to_.compute_copy.as<bf16>()[i] = parts.copy;
    if (to_.remainder.defined()) to_.remainder.as<std::uint16_t>()[i] = parts.remainder;
  }

 private:
  const UpdateOperands& to_;
  std::uint64_t update_;
};

/// A state of an update: of the master's type, or bf16 that is rounded by chance.
template <class T>
class State {
 public:
  /// The k-th of a parameter, in the update of this number.
  State(const View& state, const StateRounding& rounding, int k, std::uint64_t update)
      : state_(state), rounding_(rounding.of(k)), update_(update) {}

  T get(std::int64_t i) const {
    if (!rounding_.on) return state_.as<T>()[i];
    return static_cast<T>(to_float(state_.as<bf16>()[i]));
  }
  void put(std::int64_t i, T value) const {
    if (!rounding_.on) {
      state_.as<T>()[i] = value;
      return;
    }
    state_.as<bf16>()[i] = round_by_half(static_cast<float>(value), rounding_.half(update_, i));
  }

 private:
  const View& state_;
  StochasticRounding rounding_;
  std::uint64_t update_;
};

/// Runs f.operator()<T>() for the type of an update's masters.
template <class F>
void with_master_type(const UpdateOperands& to, const F& f) {
  with_master_type(to.master_dtype(), f);
}

}  // namespace llmtrain::kernels::reference
