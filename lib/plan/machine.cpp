#include "lib/plan/machine.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "lib/tensor/device.hpp"

namespace llmtrain::plan {

namespace {

// The value of the first "key : value" line, or nothing.
std::string cpuinfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Of the last level, or 0 where the system does not say. The C library's answer counts it once per
// core on some processors.
std::uint64_t last_level_cache_bytes() {
  for (const int level : {3, 2, 1}) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", level));
    std::uint64_t kib = 0;
    if (char unit = 0; file >> kib >> unit && unit == 'K') return kib << 10;
  }
  return 0;
}

std::string instruction_set() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
#endif
  return "baseline";
}

}  // namespace

MachineFacts machine_facts() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {.host = host.data(),
          .cpu = cpuinfo("model name"),
          .instruction_set = instruction_set(),
          .cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
          .memory_bytes = physical_memory_bytes(),
          .cache_bytes = last_level_cache_bytes()};
}

}  // namespace llmtrain::plan
