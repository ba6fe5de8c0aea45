#pragma once
/// Causal attention and its gradient as operation graphs of cuDNN: the patterns of products,
/// pointwise operations and reductions that its fused engines recognise ("scaled dot product
/// attention",
/// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html; the single
/// operations CUDNN_BACKEND_OPERATION_SDPA_* have no causal mask in 9.19). The patterns are those
/// of NVIDIA/cudnn-frontend 1.23 for backends before 9.21.

#include "kernels/attention.hpp"
#include "kernels/cuda/cudnn_graph.hpp"

namespace llmtrain::kernels::cuda {

/// Everything that a plan depends on, but for its limits: a whole attention, some of its sequences,
/// or some heads of one sequence.
struct SdpaProblem {
  std::int64_t sequences, rows, heads, kv_heads, head_dim;
  /// Row strides in elements.
  std::int64_t q_stride, k_stride, v_stride, out_stride;
  std::int64_t dout_stride, dq_stride, dk_stride, dv_stride;  // 0 in the forward
  DType dtype;
  bool backward, windowed;
  /// A query sees no key before its q_document_begin.
  bool documents;
  /// Backward: whether sums of dq may be added to memory in any order.
  bool adds_in_any_order;
  auto operator<=>(const SdpaProblem&) const = default;
};
SdpaProblem sdpa_problem(const AttentionForward& op);
SdpaProblem sdpa_problem(const AttentionBackward& op, bool adds_in_any_order);

/// Names of the tensors in a variant pack.
enum SdpaTensor : std::int64_t {
  kSdpaQ = 1,
  kSdpaK,
  kSdpaV,
  kSdpaOut,
  kSdpaLse,
  kSdpaDout,
  kSdpaDq,
  kSdpaDk,
  kSdpaDv,
  /// FP32 memory for the backward: rowsum(dout * out), [S, H, T], and, if sums are added in any
  /// order, those of dq, [S, H, T, D].
  kSdpaDelta,
  kSdpaDqSums,
  /// INT32 [S, T].
  kSdpaDocumentBegin,
  /// Scalars on the host: FP32.
  kSdpaScale,
  kSdpaHidden,  // -inf
  kSdpaWindow,
  kSdpaOne,
};

/// The finalized graph.
CudnnDescriptor sdpa_graph(const CudnnApi& api, const SdpaProblem& problem, cudnnHandle_t handle);

}  // namespace llmtrain::kernels::cuda
