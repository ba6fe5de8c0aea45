// Warm-up, stable, decay (MiniCPM, arXiv 2404.06395): the peak until a decay of given length ends
// the run.
#include "lib/base/require.hpp"
#include "lib/optim/schedules/curve.hpp"
#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {

using Curve = double (*)(double x, double end);

enum class DecayStyle : std::uint8_t { cosine, linear, exponential, one_minus_sqrt };

Curve curve_of(DecayStyle style) {
  switch (style) {
    case DecayStyle::cosine:
      return &cosine_curve;
    case DecayStyle::linear:
      return &linear_curve;
    case DecayStyle::exponential:
      return &exponential_curve;
    case DecayStyle::one_minus_sqrt:
      return &one_minus_sqrt_curve;
  }
  fail("unknown decay style");
}

struct WsdOptions : EndOptions {
  recipe::Key<recipe::Span> decay{this, "decay", recipe::Span::percents(10),
                                  "length of the decay that ends the run"};
  recipe::Key<DecayStyle> decay_style{
      this, "decay_style", DecayStyle::one_minus_sqrt, "curve of the decay",
      recipe::one_of<DecayStyle>({{"cosine", DecayStyle::cosine},
                                  {"linear", DecayStyle::linear},
                                  {"exponential", DecayStyle::exponential},
                                  {"1-sqrt", DecayStyle::one_minus_sqrt}})};

  void validate(recipe::Issues& issues) const override {
    if (decay_style() == DecayStyle::exponential && min_lr_ratio() == 0) {
      issues.add(min_lr_ratio, "an exponential never reaches 0", "set it above 0");
    }
  }
};

LrShape make(const LrScheduleChoice& choice, const Horizon& horizon, std::int64_t warmup_steps) {
  const auto& options = choice.as<WsdOptions>();
  const double end = options.min_lr_ratio();
  const Curve curve = curve_of(options.decay_style());
  const std::int64_t decay_steps = steps_to_end(options.decay(), horizon);
  const std::int64_t stable_steps = horizon.total_steps - warmup_steps - decay_steps;
  if (stable_steps < 0) {
    throw recipe::RefusedValue(
        options.decay,
        fmt::format("{} after {} steps of warm-up do not fit into the run of {} steps",
                    options.decay.value_text(), warmup_steps, horizon.total_steps),
        "shorten one of them");
  }
  return [=](std::int64_t k) {
    if (k < stable_steps) return 1.0;
    return curve(static_cast<double>(k - stable_steps) / static_cast<double>(decay_steps), end);
  };
}

}  // namespace

LrScheduleRow wsd() {
  return {.name = "wsd",
          .doc = "stays at its peak, then decays to the end of the run",
          .options = &recipe::section_of<WsdOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
