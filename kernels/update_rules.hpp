#pragma once
/// Update rules that treat every element of a parameter alike and by itself. A rule is a struct of
/// its numbers and one entry of UpdateRule; kernels::RuleUpdate is the kernel of all. (Adam's
/// kernel, the one that most runs use, is tuned by itself: kernels::AdamUpdate.)
///
/// A rule has
///   static constexpr std::array kStates;      // names of the state tensors that it keeps
///   template <class T> struct In;             // its numbers for one parameter in one step
/// where In<T> is formed from the rule, the parameter's learning rate and the step's decision, in
/// double and rounded once, and has
///   constexpr T step(T g, T* states) const;   // what p loses; advances one element's states
/// All of it is constexpr, so that device code has the very same operations. `g` is clipped; decay
/// of weights is none of a rule's business (WeightDecay).

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "kernels/update_decision.hpp"

namespace llmtrain::kernels {

namespace rules {

/// Gradient descent: lr g.
struct Sgd {
  static constexpr std::array<std::string_view, 0> kStates{};

  template <class T>
  struct In {
    T lr;
    constexpr In(const Sgd&, double rate, const UpdateDecision&) : lr(static_cast<T>(rate)) {}
    constexpr T step(T g, T*) const { return lr * g; }
  };
};

/// b = momentum b + (1 - dampening) g, but g in the first update; lr b, or with Nesterov's look
/// ahead lr (g + momentum b): torch.optim.SGD.
struct Momentum {
  static constexpr std::array<std::string_view, 1> kStates{"momentum"};
  double momentum = 0.9, dampening = 0;
  bool nesterov = false;

  template <class T>
  struct In {
    T lr, momentum, one_minus_dampening;
    bool nesterov, first;  // what the buffer holds means nothing yet
    constexpr In(const Momentum& rule, double rate, const UpdateDecision& d)
        : lr(static_cast<T>(rate)),
          momentum(static_cast<T>(rule.momentum)),
          one_minus_dampening(static_cast<T>(1 - rule.dampening)),
          nesterov(rule.nesterov),
          first(d.updates == 1) {}
    constexpr T step(T g, T* states) const {
      const T decayed = momentum * states[0] + one_minus_dampening * g;
      const T b = first ? g : decayed;
      states[0] = b;
      const T ahead = g + momentum * b;
      return lr * (nesterov ? ahead : b);
    }
  };
};

/// Adagrad (Duchi et al., JMLR 12, 2011), torch.optim.Adagrad: sum += g^2;
/// lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + eps).
struct Adagrad {
  static constexpr std::array<std::string_view, 1> kStates{"sum"};
  double lr_decay = 0, eps = 1e-10;

  template <class T>
  struct In {
    T lr, eps;
    constexpr In(const Adagrad& rule, double rate, const UpdateDecision& d)
        : lr(static_cast<T>(rate / (1 + (d.updates - 1) * rule.lr_decay))),
          eps(static_cast<T>(rule.eps)) {}
    constexpr T step(T g, T* states) const {
      states[0] += g * g;
      return lr * g / (std::sqrt(states[0]) + eps);
    }
  };
};

/// What RMSprop keeps: v always, then m if it is centered, then the buffer of its momentum.
template <bool centered, bool has_momentum>
constexpr auto rmsprop_states() {
  if constexpr (centered && has_momentum) {
    return std::array<std::string_view, 3>{"v", "m", "momentum"};
  } else if constexpr (centered) {
    return std::array<std::string_view, 2>{"v", "m"};
  } else if constexpr (has_momentum) {
    return std::array<std::string_view, 2>{"v", "momentum"};
  } else {
    return std::array<std::string_view, 1>{"v"};
  }
}

/// RMSprop (Tieleman and Hinton, 2012), torch.optim.RMSprop: v = alpha v + (1 - alpha) g^2;
/// u = g / (sqrt(v) + eps), centered with the variance v - m^2 in place of v, where m is the mean
/// of g; lr u, or with momentum b = momentum b + u and lr b. A variance that rounding takes below
/// zero is zero, where PyTorch's root is NaN.
template <bool centered, bool has_momentum>
struct Rmsprop {
  static constexpr auto kStates = rmsprop_states<centered, has_momentum>();
  double alpha = 0.99, eps = 1e-8, momentum = 0;

  template <class T>
  struct In {
    T lr, alpha, one_minus_alpha, eps, momentum;
    constexpr In(const Rmsprop& rule, double rate, const UpdateDecision&)
        : lr(static_cast<T>(rate)),
          alpha(static_cast<T>(rule.alpha)),
          one_minus_alpha(static_cast<T>(1 - rule.alpha)),
          eps(static_cast<T>(rule.eps)),
          momentum(static_cast<T>(rule.momentum)) {}
    constexpr T step(T g, T* states) const {
      const T v = alpha * states[0] + one_minus_alpha * g * g;
      states[0] = v;
      T square = v;
      if constexpr (centered) {
        const T m = states[1] + one_minus_alpha * (g - states[1]);
        states[1] = m;
        const T variance = v - m * m;
        square = variance < T(0) ? T(0) : variance;
      }
      const T root = std::sqrt(square) + eps;
      if constexpr (has_momentum) {
        constexpr int kBuffer = centered ? 2 : 1;
        states[kBuffer] = momentum * states[kBuffer] + g / root;
        return lr * states[kBuffer];
      } else {
        return lr * g / root;
      }
    }
  };
};

/// Adam (arXiv 1412.6980): m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
/// lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps), in kernels::AdamUpdate's operations.
struct Adam {
  static constexpr std::array<std::string_view, 2> kStates{"m", "v"};
  /// The decision's corrections must have been made for these.
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  template <class T>
  struct In {
    T beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, sqrt_bias_correction2, eps;
    constexpr In(const Adam& rule, double rate, const UpdateDecision& d)
        : beta1(static_cast<T>(rule.beta1)),
          beta2(static_cast<T>(rule.beta2)),
          one_minus_beta1(static_cast<T>(1 - rule.beta1)),
          one_minus_beta2(static_cast<T>(1 - rule.beta2)),
          step_size(static_cast<T>(rate / d.bias_correction1)),
          sqrt_bias_correction2(static_cast<T>(d.sqrt_bias_correction2)),
          eps(static_cast<T>(rule.eps)) {}
    constexpr void advance(T g, T* states) const {
      states[0] = beta1 * states[0] + one_minus_beta1 * g;
      states[1] = beta2 * states[1] + one_minus_beta2 * g * g;
    }
    constexpr T along(T m, T v) const {
      return step_size * m / (std::sqrt(v) / sqrt_bias_correction2 + eps);
    }
    constexpr T step(T g, T* states) const {
      advance(g, states);
      return along(states[0], states[1]);
    }
  };
};

/// Adam in the order that its paper calls the more efficient one (section 2): the eps beside the
/// root of v as it is kept, of which only the step's size is corrected,
/// lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps).
struct AdamEpsHat : Adam {
  template <class T>
  struct In : Adam::In<T> {
    constexpr In(const AdamEpsHat& rule, double rate, const UpdateDecision& d)
        : Adam::In<T>(rule, rate * d.sqrt_bias_correction2, d) {}
    constexpr T step(T g, T* states) const {
      this->advance(g, states);
      return this->step_size * states[0] / (std::sqrt(states[1]) + this->eps);
    }
  };
};

/// AMSGrad (arXiv 1904.09237), torch.optim.Adam(amsgrad=True): Adam by the largest v so far, which
/// is that before its bias is corrected.
struct Amsgrad : Adam {
  static constexpr std::array<std::string_view, 3> kStates{"m", "v", "v_max"};

  template <class T>
  struct In : Adam::In<T> {
    using Adam::In<T>::In;
    constexpr T step(T g, T* states) const {
      this->advance(g, states);
      states[2] = states[2] < states[1] ? states[1] : states[2];
      return this->along(states[0], states[2]);
    }
  };
};

/// Lion (arXiv 2302.06675): lr sign(beta1 m + (1 - beta1) g), where the sign of zero is zero; then
/// m = beta2 m + (1 - beta2) g.
struct Lion {
  static constexpr std::array<std::string_view, 1> kStates{"m"};
  double beta1 = 0.9, beta2 = 0.99;

  template <class T>
  struct In {
    T lr, beta1, beta2, one_minus_beta1, one_minus_beta2;
    constexpr In(const Lion& rule, double rate, const UpdateDecision&)
        : lr(static_cast<T>(rate)),
          beta1(static_cast<T>(rule.beta1)),
          beta2(static_cast<T>(rule.beta2)),
          one_minus_beta1(static_cast<T>(1 - rule.beta1)),
          one_minus_beta2(static_cast<T>(1 - rule.beta2)) {}
    constexpr T step(T g, T* states) const {
      const T ahead = beta1 * states[0] + one_minus_beta1 * g;
      states[0] = beta2 * states[0] + one_minus_beta2 * g;
      const T down = ahead < T(0) ? -lr : T(0);
      return ahead > T(0) ? lr : down;
    }
  };
};

}  // namespace rules

/// All of them. The first is the default.
using UpdateRule =
    std::variant<rules::Sgd, rules::Momentum, rules::Adagrad, rules::Rmsprop<false, false>,
                 rules::Rmsprop<false, true>, rules::Rmsprop<true, false>,
                 rules::Rmsprop<true, true>, rules::Amsgrad, rules::Lion, rules::AdamEpsHat>;

inline constexpr int kMaxRuleStates = 3;

/// Names of the state tensors that a rule keeps, in its order.
inline std::span<const std::string_view> states_of(const UpdateRule& rule) {
  return std::visit(
      [](const auto& r) {
        return std::span<const std::string_view>(r.kStates.data(), r.kStates.size());
      },
      rule);
}

template <class Rule>
inline constexpr int kStatesOf = static_cast<int>(std::size(Rule::kStates));
/// Room for one element's states, where a rule may have none.
template <class Rule>
inline constexpr int kRoomForStatesOf = kStatesOf<Rule> == 0 ? 1 : kStatesOf<Rule>;

/// Where the decay of weights goes: into the gradient, g += weight_decay p, or decoupled from it, p
/// *= 1 - lr weight_decay before the step or after it.
enum class WeightDecay : std::uint8_t { in_gradient, before_step, after_step };

/// A rule for one parameter in one step, with what is common to all.
template <class Rule, class T>
struct RuleInStep {
  typename Rule::template In<T> rule;
  T grad_scale, decay_in_gradient, kept_before, kept_after;
  std::uint64_t update;  // its number, by which roundings are drawn

  /// For a parameter with this factor on the learning rate and this decay.
  constexpr RuleInStep(const Rule& of, WeightDecay decay, double lr_scale, double weight_decay,
                       const UpdateDecision& d)
      : rule(of, d.lr * lr_scale, d),
        grad_scale(static_cast<T>(d.grad_scale)),
        decay_in_gradient(static_cast<T>(decay == WeightDecay::in_gradient ? weight_decay : 0)),
        kept_before(kept(decay == WeightDecay::before_step, d.lr * lr_scale * weight_decay)),
        kept_after(kept(decay == WeightDecay::after_step, d.lr * lr_scale * weight_decay)),
        update(static_cast<std::uint64_t>(d.updates)) {}

  /// The new value of p; advances its states.
  constexpr T apply(T p, T gradient, T* states) const {
    const T g = gradient * grad_scale + decay_in_gradient * p;
    return (kept_before * p - rule.step(g, states)) * kept_after;
  }

 private:
  static constexpr T kept(bool decays, double part) {
    return static_cast<T>(decays ? 1 - part : 1);
  }
};

}  // namespace llmtrain::kernels
