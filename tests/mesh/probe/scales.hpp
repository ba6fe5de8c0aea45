#pragma once
/// Listens on the CPU to the kernel that makes a tensor's scale from its largest magnitude.

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/kernel.hpp"
#include "tests/mesh/probe/output.hpp"

namespace llmtrain::test {

class Scales {
 public:
  /// Of one rank; one at a time in a process.
  Scales();
  ~Scales();
  Scales(const Scales&) = delete;
  Scales& operator=(const Scales&) = delete;

  /// `table` with ears; for an engine that this object outlives.
  const kernels::KernelTable* listen(const kernels::KernelTable& table);
  void begin_step() { scales_.clear(); }
  /// This rank's "scale 0", "scale 1", ...: those of the step, in the order in which they were
  /// made.
  void write(Output& out) const;

 private:
  static void scale_from_amax(const kernels::KernelCtx& ctx, const void* kernel, const View& space);

  std::unique_ptr<kernels::KernelTable> table_;
  kernels::KernelFunction real_ = nullptr;
  std::vector<double> scales_;
};

}  // namespace llmtrain::test
