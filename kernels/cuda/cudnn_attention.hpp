#pragma once
/// cuDNN's attention for one device.

#include <map>
#include <optional>
#include <vector>

#include "kernels/cuda/cudnn_sdpa.hpp"
#include "kernels/cuda/library_attention.hpp"
#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// A tensor of an attention: where its first sequence's first key/value head is, and how far it is
/// to the next ones.
struct SdpaOperand {
  SdpaTensor name;
  const std::byte* data;
  std::int64_t sequence_bytes, head_bytes;
};

/// FP32 scalars, read when an attention is queued.
struct SdpaScalars {
  float scale, hidden, window, one;
};

class CudnnAttention final : public LibraryAttention {
 public:
  /// CudnnRefusal when the library does not take the device that is current.
  explicit CudnnAttention(const CudnnApi& api);
  ~CudnnAttention() override;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace,
               std::string& why) override;
  bool backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace,
                std::string& why) override;

 private:
  /// Evaluation and training have few shapes; generation, whose rows are unknown, none.
  static constexpr std::size_t kMaxPrepared = 256;

  struct Key {
    SdpaProblem problem;
    std::uint64_t workspace_bytes;
    auto operator<=>(const Key&) const = default;
  };
  /// How an attention is computed: piece by piece, all of one shape, by one plan; or why not.
  struct Prepared {
    SdpaProblem piece;
    std::optional<CudnnPlan> plan;
    std::string refusal;
  };
  const Prepared& find(const Key& key);
  Prepared prepare(const Key& key) const;
  void run(const KernelCtx& ctx, const SdpaProblem& whole, const Prepared& prepared,
           std::span<const SdpaOperand> operands, const SdpaScalars& scalars, void* workspace);
  /// The piece that begins with this sequence and key/value head.
  void execute(const Prepared& prepared, std::span<const SdpaOperand> operands,
               const SdpaScalars& scalars, std::int64_t sequence, std::int64_t kv_head,
               void* workspace) const;

  const CudnnApi& api_;
  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;  // that the handle has
  std::map<Key, Prepared> prepared_;
};

}  // namespace llmtrain::kernels::cuda
