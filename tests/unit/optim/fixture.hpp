#pragma once
/// A few parameters of every role with gradients, and options read as a recipe would give them.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lib/base/philox.hpp"
#include "lib/optim/optimizer_set.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::optim {

template <class Options>
void read_options(Options& options, const std::string& yaml) {
  recipe::LoadRequest request;
  request.file = "test.yaml";
  request.text = yaml;
  recipe::load(options, request);
}

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.numel()));
  const auto read = [&]<class T>() {
    std::vector<T> raw(values.size());
    tensor.device().copy_to_host(std::as_writable_bytes(std::span(raw)), tensor);
    values.assign(raw.begin(), raw.end());
  };
  if (tensor.dtype() == DType::u8) {
    read.template operator()<std::uint8_t>();
    return values;
  }
  tensor.dtype() == DType::f64 ? read.template operator()<double>()
                               : read.template operator()<float>();
  return values;
}

inline void set_values(const Tensor& tensor, const std::vector<double>& values) {
  const auto write = [&]<class T>() {
    const std::vector<T> raw(values.begin(), values.end());
    tensor.device().copy_from_host(tensor, std::as_bytes(std::span(raw)));
  };
  tensor.dtype() == DType::f64 ? write.template operator()<double>()
                               : write.template operator()<float>();
}

inline std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.view().bytes());
  tensor.device().copy_to_host(bytes, tensor);
  return bytes;
}

inline kernels::UpdateDecision decision_of(const OptimizerSet& set) {
  kernels::UpdateDecision decision;
  const Tensor& tensor = set.decision();
  tensor.device().copy_to_host(std::as_writable_bytes(std::span(&decision, 1)), tensor);
  return decision;
}

/// ||a - b|| / ||b||; the absolute distance when b is zero.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return a.size() != b.size() ? INFINITY : std::sqrt(difference / (size == 0 ? 1 : size));
}

inline std::vector<ParameterSpec> small_model() {
  const Initializer normal{Initializer::Kind::normal, 1.0};
  return {
      {.name = "model.embed.weight",
       .shape = {4, 3},
       .role = ParameterRole::embedding,
       .init = normal},
      {.name = "blocks.0.proj.weight", .shape = {3, 5}, .init = normal},
      {.name = "blocks.0.proj.bias", .shape = {3}, .role = ParameterRole::bias, .init = normal},
      {.name = "blocks.1.proj.weight", .shape = {33, 40}, .init = normal, .rows_per_head = 11},
      {.name = "model.norm.weight", .shape = {7}, .role = ParameterRole::norm, .init = normal},
  };
}

/// Parameters with first values, but where something of them is elsewhere, on a device of their
/// own.
struct Rig {
  Device device;
  Mesh mesh{{}, 0, self_factory()};
  ParameterStore store{mesh};
  kernels::KernelCtx ctx;

  explicit Rig(const ParameterDTypes& dtypes = {}, std::vector<ParameterSpec> specs = small_model(),
               std::unique_ptr<MemoryBackend> memory = make_cpu_memory())
      : device(std::move(memory), 1 << 24) {
    ctx.device = &device;
    ctx.table = device.is_meta() ? &kernels::meta_table() : &kernels::cpu_table();
    for (ParameterSpec& spec : specs) store.declare(std::move(spec));
    if (dtypes.copy_elsewhere) {
      store.slice([](const Parameter&) { return 1; }, {.parameters_of_one = true});
    }
    store.allocate(device, dtypes, true);
    if (!dtypes.master_elsewhere && !dtypes.copy_elsewhere) store.initialize(kSeed);
  }
  static constexpr std::uint64_t kSeed = 11;

  /// The same gradients for the same step, whatever the dtype and the order of parameters.
  void set_gradients(int step, double scale) const {
    for (const auto& p : store.all()) {
      const PhiloxKey key = philox_key(3, "gradient", p->name());
      std::vector<double> g(static_cast<std::size_t>(p->grad().numel()));
      for (std::size_t i = 0; i < g.size(); ++i) {
        const std::uint32_t word = philox_word(key, static_cast<std::uint64_t>(step), i);
        g[i] = scale * static_cast<float>(normal_quantile(unit_interval(word)));
      }
      set_values(p->grad(), g);
    }
  }

  /// Everything that an update may change.
  std::vector<std::vector<std::byte>> contents(const OptimizerSet& set) const {
    std::vector<std::vector<std::byte>> all;
    for (const auto& p : store.all()) {
      all.push_back(store.read(*p));
      all.push_back(bytes_of(p->compute()));
    }
    for (const StateTensor& state : set.states()) all.push_back(bytes_of(state.tensor));
    return all;
  }
};

/// kernels::StepScalars of a step at this part of the learning rate.
inline Tensor scalars_of(const Rig& rig, const OptimizerSet& set, double lr_factor) {
  const kernels::StepScalars scalars{.lr = set.lr(lr_factor)};
  const Tensor tensor = rig.ctx.device->allocate({kernels::StepScalars::kScalars}, DType::f64,
                                                 Category::activations, "scalars");
  rig.ctx.device->copy_from_host(tensor, std::as_bytes(std::span(&scalars, 1)));
  return tensor;
}

/// A whole step, on gradients whose loss was finite.
inline StepResult run_step(const Rig& rig, OptimizerSet& set, double lr_factor) {
  const Tensor scalars = scalars_of(rig, set, lr_factor);
  set.launch_step(rig.ctx, scalars, {});
  set.update_on_host(rig.ctx);
  return step_result(decision_of(set));
}

inline constexpr ParameterDTypes kFp64{DType::f64, DType::f64, DType::f64};
inline constexpr ParameterDTypes kFp32{DType::f32, DType::f32, DType::f32};
inline constexpr ParameterDTypes kBf16{DType::bf16, DType::f32, DType::f32};
inline constexpr ParameterDTypes kFp16{DType::f16, DType::f32, DType::f32};
inline constexpr ParameterDTypes kBf16Remainder{DType::bf16, DType::f32, DType::f32,
                                                MasterForm::remainder};
inline constexpr ParameterDTypes kBf16Nearest{DType::bf16, DType::f32, DType::f32,
                                              MasterForm::none};
inline constexpr ParameterDTypes kBf16Stochastic{DType::bf16, DType::f32, DType::f32,
                                                 MasterForm::none, 5};

}  // namespace llmtrain::optim
