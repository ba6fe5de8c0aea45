#pragma once
/// An accelerator's kernels and memory, in a library of its own that is loaded when a recipe asks
/// for the device: the executable starts at once, and runs where neither driver nor libraries
/// exist.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// One device as its driver describes it.
struct AcceleratorFacts {
  std::string name;
  /// Compute capability times ten: 90 for sm_90.
  int capability = 0;
  int multiprocessors = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t cache_bytes = 0;  // of the last level
};

/// What a backend finds on this machine.
struct BackendReport {
  std::vector<AcceleratorFacts> devices;
  /// Why there are none; empty when there are.
  std::string problem;
  /// Library -> version, e.g. "driver" -> "13.0".
  std::vector<std::pair<std::string, std::string>> versions;
};

/// What a plugin provides. Lives as long as the process.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendReport report() const = 0;
  /// Memory and queues of a device. DeviceError when there is no such device.
  virtual std::unique_ptr<MemoryBackend> open(int device) const = 0;
  virtual const KernelTable& kernels() const = 0;
};

/// What the plugin's entry point `llmtrain_plugin` returns; only C types, because they are read
/// before it is known that both sides were built together.
struct PluginEntry {
  const char* interface_hash;
  const Backend& (*backend)();
};
using PluginFunction = const PluginEntry* (*)();

/// A plugin, or why there is none.
struct LoadedBackend {
  const Backend* backend = nullptr;
  std::filesystem::path file;
  std::string problem;
};

/// Loads the plugin of a device kind ("cuda"): the file that the environment variable
/// LLMTRAIN_CUDA_PLUGIN names, or libllmtrain_cuda.so beside the executable or in ../lib/llmtrain
/// of its folder. Loads once; never throws for a missing or foreign plugin.
const LoadedBackend& load_backend(DeviceKind kind);

}  // namespace llmtrain::kernels
