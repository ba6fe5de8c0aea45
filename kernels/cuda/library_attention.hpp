#pragma once
/// Attention by a vendor's library: cuDNN, where this plugin was built with it and the machine has
/// it.

#include <memory>
#include <string>

#include "kernels/attention.hpp"

namespace llmtrain::kernels::cuda {

/// What the library keeps for one device: its handle, and plans of the shapes it met.
class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;

  /// Queue an attention without an obstacle (rules/attention.hpp) whose operands begin at multiples
  /// of 16 bytes, in the workspace of CudnnScratch. False, having done nothing, with the reason in
  /// `why`, where the library does not compute it within the workspace. The first launch of a shape
  /// makes its plan; later ones neither wait nor allocate. All results are the same from run to
  /// run, but for Determinism::fast.
  virtual bool forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace,
                       std::string& why) = 0;
  virtual bool backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace,
                        std::string& why) = 0;
};

/// For the device that is current; null, with the reason in `why`, without a library.
std::unique_ptr<LibraryAttention> open_library_attention(std::string& why);

struct LibraryVersion {
  std::string version;  // "9.19.0"; empty without a library
  std::string problem;  // why it is not used; empty when it is
};
LibraryVersion attention_library_version();

}  // namespace llmtrain::kernels::cuda
