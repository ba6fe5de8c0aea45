#include "lib/plan/machine.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <unistd.h>

#include "kernels/cpu/onednn_version.hpp"
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
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return {.host = host.data(),
          .cpu = cpuinfo("model name"),
          .instruction_set = instruction_set(),
          .onednn_version = kernels::onednn_version(),
          .cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
          .memory_bytes = physical_memory_bytes(),
          .cache_bytes = static_cast<std::uint64_t>(std::max(0L, cache))};
}

}  // namespace llmtrain::plan
