#pragma once
/// Products as the tests of CUDA want them, and the emulated plugin's library.

#include <dlfcn.h>

#include "kernels/matmul.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/cuda_emulation/fake_cublaslt.hpp"

namespace llmtrain::kernels::gpu_trial {

using Mode = FakeCublasLt::Mode;

/// The emulated plugin's library; null where the plugin is the real one, whose library multiplies
/// what it takes: there a build with LLMTRAIN_CUDA_LIBRARIES=OFF tests our own products.
inline FakeCublasLt* fake_library() {
  void* plugin =
      ::dlopen(load_backend(DeviceKind::cuda).file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto function = reinterpret_cast<FakeCublasLtFunction>(::dlsym(plugin, "fake_cublaslt"));
  return function != nullptr ? function() : nullptr;
}

/// The fake library in another mode, for a while.
class InMode {
 public:
  explicit InMode(Mode mode) : fake_(fake_library()) {
    if (fake_ == nullptr) return;
    before_ = fake_->mode;
    fake_->mode = mode;
  }
  ~InMode() {
    if (fake_ != nullptr) fake_->mode = before_;
  }
  InMode(const InMode&) = delete;
  InMode& operator=(const InMode&) = delete;
  bool possible() const { return fake_ != nullptr; }

 private:
  FakeCublasLt* fake_;
  Mode before_ = Mode::takes;
};

/// By the fake library.
inline std::int64_t products_queued() { return fake_library()->products; }

enum class Bias : std::uint8_t { none, narrow, wide };

struct Problem {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  bool wide_c = false;  // FP32 result of operands of half the width
  bool accumulate = false;
  Bias bias = Bias::none;
  std::int64_t gap = 0;
  std::int64_t bias_gap = 0;  // above 1, the bias begins at an odd address
  Determinism determinism = Determinism::run;
};

/// The operands of a problem; the tensors own what the kernel sees.
struct Operation {
  Tensor a, b, c, bias;
  Matmul kernel;

  Operation(Machine& machine, const Problem& p) {
    const auto stored = [](bool transposed, std::int64_t rows, std::int64_t cols) {
      return transposed ? Shape{cols, rows} : Shape{rows, cols};
    };
    a = machine.operand("a", stored(p.transpose_a, p.m, p.k), p.gap);
    b = machine.operand("b", stored(p.transpose_b, p.k, p.n), p.gap);
    const DType rounded = p.wide_c ? DType::f32 : machine.operand_type();
    const DType result = p.wide_c ? machine.wide() : machine.compute();
    c = p.accumulate ? machine.normals("c", {p.m, p.n}, result, rounded, p.gap)
                     : machine.empty({p.m, p.n}, result, p.gap);
    if (p.bias == Bias::narrow) {
      bias = machine.normals("bias", {p.n}, result, rounded, p.bias_gap);
    }
    if (p.bias == Bias::wide) {
      bias = machine.normals("bias", {p.n}, machine.wide(), DType::f32, p.bias_gap);
    }
    kernel = {a, b, c, bias, p.transpose_a, p.transpose_b, p.accumulate};
  }
};

inline void run(Machine& machine, const Problem& p, const Operation& operation) {
  KernelCtx ctx = machine.ctx();
  ctx.determinism = p.determinism;
  launch(ctx, operation.kernel);
}

inline Machine gpu_machine(DType dtype) { return Machine(Place::gpu, dtype, dtype); }

}  // namespace llmtrain::kernels::gpu_trial
