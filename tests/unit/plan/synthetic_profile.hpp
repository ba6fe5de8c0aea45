#pragma once
/// A profile made up so that every time can be worked out by hand.

#include "lib/plan/hardware_profile.hpp"

namespace llmtrain::plan {

/// Two threads, peaks 200 and 400 GFLOP/s. fp32 products forward run at 100 GFLOP/s, `add` at 10
/// GB/s.
inline HardwareProfile synthetic_profile() {
  HardwareProfile profile;
  profile.machine = {.host = "host",
                     .cpu = "a \"processor\"",
                     .instruction_set = "avx2",
                     .cores = 2,
                     .memory_bytes = 1 << 30,
                     .cache_bytes = 1 << 20};
  profile.threads = 2;
  profile.peak_fp32_flops = 200e9;
  profile.peak_bf16_flops = 400e9;
  profile.memory_bytes_per_second = 10e9;
  profile.launch_seconds = 1e-7;
  profile.noise = 0.03;
  const KernelModel::Axis axis = {10, 1000};
  std::vector<double> work, seconds;
  for (const double m : axis) {
    for (const double n : axis) {
      for (const double k : axis) {
        work.push_back(2 * m * n * k);
        seconds.push_back(work.back() / 100e9);
      }
    }
  }
  profile.kernels.emplace(KernelKey{"matmul", DType::f32, 0},
                          KernelModel({axis, axis, axis}, work, seconds));
  profile.kernels.emplace(KernelKey{"add", DType::f32, 0},
                          KernelModel({{1e3, 1e6}}, {1e3, 1e6}, {1e-7, 1e-4}));
  return profile;
}

}  // namespace llmtrain::plan
