#pragma once
/// cuDNN for the emulated GPU, and what a test may ask of it: `fake_cudnn_state`, by dlsym in the
/// emulated plugin.
///
/// What this stand-in believes of cuDNN 9.19:
///  - An attribute has one type; a descriptor is filled, then finalized, then used; what it refers
///    to is finalized before. (docs.nvidia.com/deeplearning/cudnn/backend: "Use cases")
///  - Names of tensors are one tensor each within a graph; a variant pack gives an address to each
///    that is not virtual, and a workspace of what the plan says. Scalars by value are read from
///    the host at cudnnBackendExecute.
///  - Attention is recognised as the graphs of NVIDIA/cudnn-frontend 1.23 (CompositeSDPANode,
///    CompositeSDPABackwardNode): key and value operands are given transposed, the index of a
///    column is the first operand where it is compared with document begins.
///  - Engines and their workspace are those that cuDNN 9.19.0 itself proposes for a described
///    H100 (tests/cudnn): 256 bytes forward; backward in a fixed order [S, H, T, T] in bf16 or
///    fp16.
///  - Pointers are multiples of 16 bytes, the workspace of 256.
/// It computes what the graph says, operation by operation, in FP32; a tensor in bf16 or fp16 is
/// rounded, in memory or not. Which engine the real one runs, how it adds, and whether a sum is the
/// same each time, only a GPU can show.

#include <cstdint>

struct FakeCudnn {
  /// takes: all attentions that the library documents. refuses: it has no engine for any. fickle:
  /// no plan of the engine that it proposes first can be made. old: it is of version 9.10. The
  /// environment variable LLMTRAIN_FAKE_CUDNN names the mode at the start.
  enum class Mode : std::uint8_t { takes, refuses, fickle, old };
  Mode mode = Mode::takes;
  std::int64_t handles = 0;     // that are open
  std::int64_t heuristics = 0;  // asked
  std::int64_t plans = 0;       // made
  std::int64_t executed = 0;
  std::int64_t engine = 0;  // of the last plan that was executed
};

using FakeCudnnFunction = FakeCudnn* (*)();
