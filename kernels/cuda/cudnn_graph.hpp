#pragma once
/// Operation graphs of cuDNN and the plans that compute them.

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_api.hpp"

namespace llmtrain::kernels::cuda {

/// What the library refuses to describe or to compute, in its words.
class CudnnRefusal : public std::runtime_error {
 public:
  explicit CudnnRefusal(const std::string& why, bool for_workspace = false)
      : std::runtime_error(why), for_workspace_(for_workspace) {}
  /// Whether more workspace, or a smaller problem, might help.
  bool for_workspace() const { return for_workspace_; }

 private:
  bool for_workspace_;
};

/// A descriptor and its attributes; every failure is a CudnnRefusal.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnApi& api, cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       std::span<const T> values) {
    return set_raw(name, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       const T& value) {
    return set_raw(name, type, 1, &value);
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
  }
  CudnnDescriptor& finalize();
  /// Reads up to `count` elements; returns how many there are.
  std::int64_t read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    std::int64_t count, void* values) const;

 private:
  CudnnDescriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                           std::int64_t count, const void* values);
  const CudnnApi* api_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// A tensor of a graph: always 4 dims, here [sequence, head, row, column].
using CudnnDims = std::array<std::int64_t, 4>;
struct CudnnTensor {
  const CudnnDescriptor* descriptor;
  CudnnDims dims, strides;
  cudnnDataType_t type;
};

/// Takes operations one after the other. Results that are not named live in registers ("virtual"
/// tensors) and are FP32 unless they say otherwise; sums are FP32.
class CudnnGraph {
 public:
  explicit CudnnGraph(const CudnnApi& api) : api_(api) {}

  /// A tensor in memory, at a multiple of 16 bytes, or a host's scalar.
  CudnnTensor operand(std::int64_t uid, cudnnDataType_t type, const CudnnDims& dims,
                      const CudnnDims& strides);
  CudnnTensor scalar(std::int64_t uid, cudnnDataType_t type);
  /// A result in registers, rows of `dims` one after the other.
  CudnnTensor virtual_tensor(const CudnnDims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);

  void matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c);
  void reduce(cudnnReduceTensorOp_t by, const CudnnTensor& x, const CudnnTensor& y);
  void unary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& y);
  CudnnTensor unary(cudnnPointwiseMode_t mode, const CudnnTensor& x);
  void binary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
              const CudnnTensor& y);
  /// Of x's dims.
  CudnnTensor binary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b);
  /// Each element's index on an axis, INT32.
  CudnnTensor index(const CudnnTensor& like, std::int64_t axis);
  /// BOOLEAN, of x's dims.
  CudnnTensor compare(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b);
  /// x where the condition holds, else `other`.
  CudnnTensor select(const CudnnTensor& condition, const CudnnTensor& x, const CudnnTensor& other);
  /// The same elements with rows and columns exchanged, as `type`.
  CudnnTensor transposed(const CudnnTensor& x, cudnnDataType_t type);

  /// The finalized graph. `handle` is null where a plan is made for a described device.
  CudnnDescriptor finish(cudnnHandle_t handle);

 private:
  CudnnTensor tensor(std::int64_t uid, cudnnDataType_t type, const CudnnDims& dims,
                     const CudnnDims& strides, bool is_virtual, bool by_value);
  CudnnDescriptor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math,
                            std::optional<std::int64_t> axis = {});
  CudnnDescriptor& operation(cudnnBackendDescriptorType_t type);
  CudnnDescriptor& keep(CudnnDescriptor descriptor);

  static constexpr std::int64_t kFirstVirtual = 1000;
  const CudnnApi& api_;
  std::int64_t next_virtual_ = kFirstVirtual;
  /// Pointers to them stay: tensors, descriptions and operations.
  std::vector<std::unique_ptr<CudnnDescriptor>> kept_;
  std::vector<cudnnBackendDescriptor_t> operations_;
};

/// For which device plans are made: that of a handle, or one that is described, which needs none
/// to be there.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* device = nullptr;
};

struct CudnnPlanLimits {
  std::uint64_t workspace_bytes = 0;
  bool deterministic = true;
};

/// One way to compute a graph, as the library proposes it.
struct CudnnCandidate {
  CudnnDescriptor config;
  std::int64_t engine = 0;
  std::uint64_t workspace_bytes = 0;
  bool deterministic = false;
};

/// What the library's heuristic proposes, best first; without candidates a CudnnRefusal.
std::vector<CudnnCandidate> cudnn_candidates(const CudnnApi& api, const CudnnDescriptor& graph,
                                             const CudnnTarget& target);

struct CudnnPlan {
  CudnnDescriptor plan;
  std::uint64_t workspace_bytes = 0;
};

/// The first candidate within the limits that becomes a plan; else a CudnnRefusal that says why
/// each did not.
CudnnPlan cudnn_plan(const CudnnApi& api, const CudnnDescriptor& graph, const CudnnTarget& target,
                     const CudnnPlanLimits& limits);

}  // namespace llmtrain::kernels::cuda
