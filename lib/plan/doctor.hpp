#pragma once
/// Measures a hardware profile: every kernel by itself, through the door that the run uses.

#include <functional>
#include <string_view>

#include "lib/plan/hardware_profile.hpp"

namespace llmtrain::plan {

struct DoctorOptions {
  int threads = 1;
  /// Coarse grids and fewer repetitions: seconds instead of a minute or two.
  bool quick = false;
  /// Told what is being measured and how much of all is done, 0 to 1. May be empty.
  std::function<void(std::string_view what, double done)> progress;
};

/// Every point is timed in each of several passes over all points, so that other work on the
/// machine, which comes in bursts, does not meet all its times, and the median stands. Takes about
/// 600 MB of memory.
HardwareProfile measure_profile(const DoctorOptions& options);

}  // namespace llmtrain::plan
