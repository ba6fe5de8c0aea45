// The plugin's entry: what the executable sees of CUDA.
#include "lib/base/plugin.hpp"

#include <interface_hash.h>  // generated: cmake/interface_hash.cmake

#include "kernels/backend.hpp"
#include "kernels/cuda/launch_timer.hpp"
#include "kernels/cuda/library_group.hpp"
#include "kernels/cuda/library_matmul.hpp"
#include "kernels/cuda/memory.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/architectures.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// 13000 -> "13.0".
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Asks the driver alone: no context, which would take memory, is made on the device.
AcceleratorFacts facts_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "to describe the device");
  return {.name = properties.name,
          .capability = 10 * properties.major + properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = properties.totalGlobalMem,
          .cache_bytes = static_cast<std::uint64_t>(properties.l2CacheSize),
          .multiplies_codes = has_code_products(10 * properties.major + properties.minor) &&
                              !product_library_version().empty(),
          .problem = architecture_problem(LLMTRAIN_CUDA_ARCHITECTURES,
                                          10 * properties.major + properties.minor)};
}

class CudaBackend final : public Backend {
 public:
  BackendReport report() const override {
    BackendReport report;
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
      report.versions.emplace_back("CUDA runtime", version_text(version));
    }
    if (cudaDriverGetVersion(&version) == cudaSuccess) {
      report.versions.emplace_back("driver", version == 0 ? "none" : version_text(version));
    }
    if (const std::string library = product_library_version(); !library.empty()) {
      report.versions.emplace_back("cuBLASLt", library);
    }
    const LibraryVersion attention = attention_library_version();
    report.cudnn_problem = attention.problem;
    report.versions.emplace_back("cuDNN",
                                 attention.problem.empty() ? attention.version : attention.problem);
    const LibraryVersion groups = group_library_version();
    report.nccl_problem = groups.problem;
    report.versions.emplace_back("NCCL", groups.problem.empty() ? groups.version : groups.problem);
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
      cudaGetLastError();
      report.problem = cudaGetErrorString(status);
    } else if (count == 0) {
      report.problem = "the driver shows no GPU";
    }
    for (int device = 0; report.problem.empty() && device < count; ++device) {
      report.devices.push_back(facts_of(device));
    }
    if (!report.devices.empty()) report.problem = report.devices.front().problem;
    return report;
  }

  std::uint64_t free_bytes(int device) const override {
    int current = 0;
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaGetDevice(&current), "to ask for the device");
    check(cudaSetDevice(device), "to choose the device");
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "to ask for free memory");
    check(cudaSetDevice(current), "to choose the device");
    return free_bytes;
  }

  std::unique_ptr<MemoryBackend> open(int device) const override {
    return std::make_unique<CudaMemory>(device);
  }

  const KernelTable& kernels() const override { return cuda_table(); }

  std::vector<std::string> choices(const Device& device) const override {
    return static_cast<CudaMemory&>(device.backend()).attention().lines();
  }

  std::unique_ptr<LaunchTimer> time_launches(const Device& device) const override {
    return std::make_unique<EventTimer>(
        static_cast<cudaStream_t>(device.backend().compute_stream().native));
  }

  TunedProducts tune_products(const KernelCtx& ctx, std::span<const Product> products,
                              const View& scratch, const ProductMemory& memory) const override {
    return tune_library_products(ctx, products, scratch, memory);
  }
};

void* backend() {
  static CudaBackend backend;
  return static_cast<Backend*>(&backend);
}

}  // namespace

}  // namespace llmtrain::kernels::cuda

extern "C" __attribute__((visibility("default"))) const llmtrain::PluginEntry* llmtrain_plugin() {
  static const llmtrain::PluginEntry entry{LLMTRAIN_INTERFACE_HASH,
                                           &llmtrain::kernels::cuda::backend};
  return &entry;
}
