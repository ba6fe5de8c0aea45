#pragma once
/// Single launches with a clock: operands from slabs larger than the caches, so that every launch
/// finds its operands in memory, as most launches of a step do.

#include <chrono>
#include <memory>
#include <vector>

#include "lib/plan/kernel_model.hpp"

namespace llmtrain::plan {

/// One timed launch.
struct LaunchTime {
  KernelKey key;
  KernelPoint point;
  double seconds = 0;
};

class KernelBench {
 public:
  /// Two slabs of `slab_bytes`, one for inputs, one for results, and a device for workspaces.
  KernelBench(const kernels::KernelTable& table, int threads, std::uint64_t slab_bytes);

  /// Operands of one launch: consecutive launches get consecutive parts of the slabs. Inputs hold
  /// 0.01 in fp32 and in bf16; what is in results is left over from earlier launches.
  View input(std::int64_t rows, std::int64_t cols, DType dtype);
  View result(std::int64_t rows, std::int64_t cols, DType dtype);
  /// Whole numbers i * factor % modulus, int32 or int64; the same array for equal arguments.
  View numbers(std::int64_t count, std::int64_t modulus, DType dtype = DType::i32,
               std::int64_t factor = 1);
  /// A decision to update as it is, for updates; not that of the first one.
  View decision() const { return decision_; }
  std::uint64_t slab_bytes() const { return slab_bytes_; }

  template <class K>
  LaunchTime launch(const K& kernel) {
    const auto begin = std::chrono::steady_clock::now();
    kernels::launch(context_, kernel);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return {key_of(K::name, kernel.dtype(), kernel.sizes()),
            point_of(K::name, kernel.sizes(), kernel.cost()), seconds};
  }

  /// Gives the results slab its first content again.
  void refill();

 private:
  struct Slab {
    Tensor memory;
    std::uint64_t next = 0;
  };
  struct Numbers {
    std::int64_t count, modulus, factor;
    Tensor memory;
  };
  View take(Slab& slab, std::int64_t rows, std::int64_t cols, DType dtype);

  std::uint64_t slab_bytes_;
  std::unique_ptr<Device> device_;
  kernels::KernelCtx context_;
  Slab inputs_, results_;
  std::vector<Numbers> numbers_;
  Tensor decision_;
};

}  // namespace llmtrain::plan
