#include "lib/engine/sections.hpp"

#include <cmath>
#include <optional>
#include <vector>

namespace llmtrain::engine {

namespace {

void check_length(const TrainingSection& training, recipe::Issues& issues) {
  const int lengths = training.max_steps().has_value() + training.max_tokens().has_value() +
                      training.num_epochs().has_value();
  if (lengths == 1) return;
  issues.add(training.max_steps,
             lengths == 0 ? "the run has no length: set one of max_steps, max_tokens and num_epochs"
                          : "give one of max_steps, max_tokens and num_epochs, not several");
}

void check_micro_batches(const TrainingSection& training, recipe::Issues& issues) {
  if (training.global_batch_size() % training.micro_batch_size() == 0) return;
  issues.add(training.global_batch_size,
             fmt::format("{} samples are not a multiple of micro_batch_size {}",
                         training.global_batch_size().value, training.micro_batch_size().value));
}

void check_ramp(const TrainingSection& training, recipe::Issues& issues) {
  if (!training.rampup_batch_size) return;
  const RampupSection& ramp = training.rampup_batch_size;
  const recipe::Count micro = training.micro_batch_size();
  const recipe::Count global = training.global_batch_size();
  if (ramp.start() % micro != 0 || ramp.increment() % micro != 0) {
    issues.add(
        ramp.start,
        fmt::format("start and increment must be multiples of micro_batch_size {}", micro.value));
  }
  if (ramp.start() > global) {
    issues.add(ramp.start, fmt::format("is above global_batch_size {}", global.value));
  } else if ((global - ramp.start()) % ramp.increment() != 0) {
    issues.add(ramp.increment,
               fmt::format("steps of {} do not lead from {} to global_batch_size {}",
                           ramp.increment().value, ramp.start().value, global.value));
  }
}

}  // namespace

// Rule by rule: a value that was refused hides those that ask for it, not the others.
void TrainingSection::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] { check_length(*this, issues); });
  recipe::judge(issues, [&] { check_micro_batches(*this, issues); });
  recipe::judge(issues, [&] { check_ramp(*this, issues); });
}

DType PrecisionSection::compute() const {
  switch (type()) {
    case ComputeType::fp32:
      return DType::f32;
    case ComputeType::fp16:
      return DType::f16;
    case ComputeType::fp64:
      return DType::f64;
    case ComputeType::bf16:
    case ComputeType::fp8:
      return DType::bf16;
  }
  fail("no type of products {}", static_cast<int>(type()));
}

std::optional<QuantizationOptions> PrecisionSection::quantization() const {
  // All are read whatever they say: validate() has refused what does not go together.
  QuantizationOptions options;
  options.scaling = fp8.scaling().value_or(options.scaling);
  if (const auto& history = fp8.amax_history()) {
    options.history = static_cast<std::int64_t>(history->value);
  }
  options.algorithm = fp8.amax_algorithm().value_or(options.algorithm);
  if (const auto& margin = fp8.margin()) options.margin = static_cast<int>(margin->value);
  options.power_of_two = fp8.power_of_two_scales().value_or(options.power_of_two);
  options.products = fp8.products().value_or(options.products);
  options.include = fp8.include();
  options.exclude = fp8.exclude();
  return type() == ComputeType::fp8 ? std::optional(std::move(options)) : std::nullopt;
}

std::optional<optim::LossScaling> PrecisionSection::loss_scaling() const {
  // All are read whatever they say: validate() has refused what does not go together.
  const auto& scale = loss_scale();
  const auto& first = initial_loss_scale();
  const auto& interval = growth_interval();
  const auto& growth = growth_factor();
  const auto& backoff = backoff_factor();
  if (compute() != DType::f16) return std::nullopt;
  if (scale && !scale->is_auto()) {
    return optim::LossScaling{.initial = static_cast<double>(scale->value->value),
                              .growth_interval = 0};
  }
  optim::LossScaling scaling;
  if (first) scaling.initial = static_cast<double>(first->value);
  if (interval) scaling.growth_interval = static_cast<double>(interval->value);
  scaling.growth_factor = growth.value_or(scaling.growth_factor);
  scaling.backoff_factor = backoff.value_or(scaling.backoff_factor);
  return scaling;
}

namespace {

// A key of the loss's scale that the recipe gives, and its number, where that is to be a power of
// two.
struct ScaleKey {
  const recipe::Entry* key;
  std::optional<double> power;
};

void check_loss_scale(const PrecisionSection& precision, recipe::Issues& issues) {
  const auto& scale = precision.loss_scale();
  const auto& initial = precision.initial_loss_scale();
  const auto& growth = precision.growth_factor();
  const auto& backoff = precision.backoff_factor();
  const bool fixed = scale && !scale->is_auto();
  const auto number = [](const recipe::Count& count) { return static_cast<double>(count.value); };
  std::vector<ScaleKey> of_dynamic;
  if (initial) of_dynamic.push_back({&precision.initial_loss_scale, number(*initial)});
  if (precision.growth_interval()) of_dynamic.push_back({&precision.growth_interval, {}});
  if (growth) of_dynamic.push_back({&precision.growth_factor, growth});
  if (backoff) of_dynamic.push_back({&precision.backoff_factor, backoff});
  std::vector<ScaleKey> all = of_dynamic;
  if (scale) {
    all.push_back(
        {&precision.loss_scale, fixed ? std::optional(number(*scale->value)) : std::nullopt});
  }
  for (const auto& [key, power] : all) {
    int exponent = 0;
    if (precision.compute() != DType::f16) {
      issues.add(
          *key,
          fmt::format("belongs to compute fp16, and compute is {}", to_string(precision.compute())),
          "leave it out");
    } else if (power && std::frexp(*power, &exponent) != 0.5) {
      issues.add(*key, fmt::format("{} is no power of two, and would round gradients", *power),
                 fmt::format("take {}", std::ldexp(0.5, exponent)));
    }
  }
  if (!fixed) return;
  for (const ScaleKey& given : of_dynamic) {
    issues.add(*given.key, "belongs to loss_scale: dynamic");
  }
}

// A key that says nothing is refused, not passed over.
void check_fp8(const PrecisionSection& precision, recipe::Issues& issues) {
  const Fp8Section& fp8 = precision.fp8;
  const bool on = precision.type() == ComputeType::fp8;
  const auto check = [&](const recipe::Entry& key, bool is_given,
                         std::optional<OperandScaling> scaling, std::string_view name) {
    if (!is_given) return;
    if (!on) {
      issues.add(key, "belongs to compute fp8", "set precision.compute: fp8, or leave it out");
    } else if (scaling && fp8.scaling().value_or(OperandScaling::current) != *scaling) {
      issues.add(key, fmt::format("belongs to scaling {}", name), "leave it out");
    }
  };
  check(fp8.scaling, fp8.scaling().has_value(), {}, "");
  check(fp8.amax_history, fp8.amax_history().has_value(), OperandScaling::delayed, "delayed");
  check(fp8.amax_algorithm, fp8.amax_algorithm().has_value(), OperandScaling::delayed, "delayed");
  check(fp8.margin, fp8.margin().has_value(), OperandScaling::delayed, "delayed");
  check(fp8.power_of_two_scales, fp8.power_of_two_scales().has_value(), OperandScaling::block,
        "block");
  check(fp8.products, fp8.products().has_value(), {}, "");
  if (on && fp8.products() && fp8.scaling() == OperandScaling::block) {
    issues.add(fp8.products, "belongs to scaling current and delayed", "leave it out");
  }
  check(fp8.include, !fp8.include().empty(), {}, "");
  check(fp8.exclude, !fp8.exclude().empty(), {}, "");
}

}  // namespace

void PrecisionSection::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] { check_loss_scale(*this, issues); });
  recipe::judge(issues, [&] { check_fp8(*this, issues); });
  if (master() == MasterForm::remainder && compute() != DType::bf16) {
    issues.add(master, "bf16+remainder completes bf16 parameters, which compute does not ask for",
               "set precision.compute: bf16, or master: fp32");
  }
  if (master() == MasterForm::none && compute() != DType::bf16) {
    issues.add(master, "none is for bf16 parameters, which compute does not ask for",
               "set precision.compute: bf16, or master: fp32");
  }
  if (rounding() && master() != MasterForm::none) {
    issues.add(rounding, "is for parameters without a master", "leave it out, or set master: none");
  }
  if (logits() == LogitsPrecision::compute && !is_half_width(compute())) {
    issues.add(logits, fmt::format("are {} already, as compute is", to_string(compute())),
               "leave it out, or set precision.compute: bf16");
  }
  if (tf32() && compute() != DType::f32) {
    issues.add(tf32,
               fmt::format("rounds products of fp32, and compute is {}", to_string(compute())),
               "leave it out");
  }
}

void ActivationCheckpointSection::validate(recipe::Issues& issues) const {
  if (k().has_value() != (mode() == RecomputeMode::every_k)) {
    issues.add(k, "k belongs to mode every_k, and every_k needs it");
  }
  if (ops().empty() == (mode() == RecomputeMode::selective)) {
    issues.add(ops, "ops belongs to mode selective, and selective needs it");
  }
  if (budget().has_value() != (mode() == RecomputeMode::budget)) {
    issues.add(budget, "budget belongs to mode budget, which needs it");
  }
}

RecomputePolicy ActivationCheckpointSection::policy(std::int64_t num_blocks) const {
  const std::int64_t every = k() ? static_cast<std::int64_t>(k()->value) : 1;
  const RecomputedOps named(ops().begin(), ops().end());
  switch (mode()) {
    case RecomputeMode::none:
    case RecomputeMode::budget:
      return {};
    case RecomputeMode::full:
    case RecomputeMode::every_k:
      return RecomputePolicy::whole_blocks(num_blocks, every);
    case RecomputeMode::sqrt:
      return RecomputePolicy::segments_of_sqrt(num_blocks);
    case RecomputeMode::selective:
      return RecomputePolicy::operations(num_blocks, named);
  }
  return {};
}

}  // namespace llmtrain::engine
