#pragma once
/// An accelerator's kernels and memory, in a library of its own that is loaded when a recipe asks
/// for the device: the executable starts at once, and runs where neither driver nor libraries
/// exist.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  std::uint64_t cache_bytes = 0;  // of the last level
  /// Whether a library that this build has multiplies codes of eight bits on it (CodeMatmul).
  bool multiplies_codes = false;
  /// Why this build does not run on it; empty when it does.
  std::string problem;
};

/// What a backend finds on this machine. To find it prepares no device for use.
struct BackendReport {
  std::vector<AcceleratorFacts> devices;
  /// Why there are none, or what is wrong with the first, which a process by itself takes; empty
  /// when all is well.
  std::string problem;
  /// Library -> version, e.g. "driver" -> "13.0".
  std::vector<std::pair<std::string, std::string>> versions;
  /// Why no attention is computed by cuDNN; empty when it may be.
  std::string cudnn_problem;
  /// Why no ranks exchange by NCCL; empty when they may.
  std::string nccl_problem;
};

struct Product;

/// Choices of algorithms that tune_products() goes by, the first that knows a product.
struct ProductMemory {
  /// TunedProducts::choices of the run so far; empty when it begins.
  std::string_view choices;
  /// What runs share: read, and written when something was measured. May be absent.
  std::filesystem::path file;
  /// Asked before each product that is to be measured: true leaves it and the others out.
  std::function<bool()> stop = [] { return false; };
};

/// What tune_products() did with products that differ in what a choice depends on.
struct TunedProducts {
  std::size_t kept = 0;      // as in ProductMemory::choices
  std::size_t known = 0;     // from the file
  std::size_t measured = 0;  // now
  /// No library takes them, the scratch memory is too small, or somebody asked to stop: as without
  /// tuning.
  std::size_t left_out = 0;
  /// All choices that hold from now on, as text (see algorithm_cache.hpp).
  std::string choices;

  std::size_t total() const { return kept + known + measured + left_out; }
};

/// Times launches by the device's own clock: neither what the host takes to make them nor its
/// waiting is in them, as long as it is ahead of the device.
class LaunchTimer {
 public:
  virtual ~LaunchTimer() = default;
  /// Before and behind a launch; neither waits. Not while launches are recorded.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// Seconds of each launch since the last call, in their order; waits for them.
  virtual std::vector<double> take() = 0;
};

/// What a plugin provides. Lives as long as the process.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendReport report() const = 0;
  /// What a device has to give now. Prepares it for this process, which takes some of its memory.
  /// DeviceError when it cannot be used.
  virtual std::uint64_t free_bytes(int device) const = 0;
  /// Memory and queues of a device. DeviceError when there is no such device.
  virtual std::unique_ptr<MemoryBackend> open(int device) const = 0;
  virtual const KernelTable& kernels() const = 0;
  /// Which of several kernels computed what on this device so far, and why: a line for each.
  virtual std::vector<std::string> choices(const Device& device) const = 0;
  /// Of the device's queue of launches. It must not outlive the device.
  virtual std::unique_ptr<LaunchTimer> time_launches(const Device& device) const = 0;

  /// Times every algorithm that a library offers for these products, and takes the fastest from
  /// then on; without this, the library's own guess. What `memory` knows is not measured again, so
  /// that a run that goes on has the bits of one that never stopped, whatever became of the file.
  /// Of the products' data only the alignment of its addresses matters: all work is done in
  /// `scratch`, an address that is a multiple of 256 with cuda::tuning_scratch_bytes(). Without
  /// room, products are only looked up; without products, what `memory.choices` says holds. A file
  /// that cannot be written is a warning.
  virtual TunedProducts tune_products(const KernelCtx& ctx, std::span<const Product> products,
                                      const View& scratch, const ProductMemory& memory) const = 0;
};

/// A plugin, or why there is none.
struct LoadedBackend {
  const Backend* backend = nullptr;
  std::filesystem::path file;
  std::string problem;
};

/// Loads the plugin of a device kind ("cuda"; lib/base/plugin.hpp). Loads once; never throws for a
/// missing or foreign plugin.
const LoadedBackend& load_backend(DeviceKind kind);

}  // namespace llmtrain::kernels
