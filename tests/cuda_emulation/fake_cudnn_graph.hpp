#pragma once
/// Operation graphs of the fake cuDNN: read from descriptors, checked, and computed.

#include <array>
#include <cudnn_graph.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fake_cudnn {

bool is_half_width(cudnnDataType_t type);

/// Ends the program, naming a use of the library that no library takes.
[[noreturn]] void die(const char* what, long which = 0);

struct Descriptor;
using Reference = std::shared_ptr<Descriptor>;

struct Value {
  cudnnBackendAttributeType_t type{};
  std::vector<std::byte> bytes;
  std::vector<Reference> references;  // of descriptors
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values;

  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) != 0; }
  template <class T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto& bytes = values.at(name).bytes;
    const auto* const first = reinterpret_cast<const T*>(bytes.data());
    return std::vector<T>(first, first + bytes.size() / sizeof(T));
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name) const {
    return all<T>(name).at(0);
  }
  const Reference& reference(cudnnBackendAttributeName_t name) const {
    return values.at(name).references.at(0);
  }
};

using Dims = std::array<std::int64_t, 4>;

struct Tensor {
  std::int64_t uid = 0;
  cudnnDataType_t type{};
  Dims dims{}, strides{};
  bool is_virtual = false, by_value = false;

  std::int64_t numel() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  bool operator==(const Tensor&) const = default;
};

struct Operation {
  cudnnBackendDescriptorType_t kind{};
  cudnnPointwiseMode_t mode{};
  cudnnReduceTensorOp_t reduction{};
  std::int64_t axis = 0;
  std::vector<Tensor> inputs;
  Tensor output;
};

class Graph {
 public:
  /// From a finalized CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR; dies where it is no graph.
  explicit Graph(const Descriptor& descriptor);

  /// Why it is no attention that an engine takes; empty when one does.
  std::string refusal() const;
  bool is_backward() const { return products() == 5; }
  /// Of a backward: whether dq is summed in memory.
  bool adds_in_any_order() const;
  std::int64_t workspace_bytes() const;
  /// Tensors that are not virtual, by uid.
  const std::map<std::int64_t, Tensor>& operands() const { return operands_; }
  void run(const std::map<std::int64_t, void*>& data) const;

 private:
  std::int64_t products() const;
  const Operation& product(std::int64_t n) const;
  std::vector<Operation> operations_;
  std::map<std::int64_t, Tensor> operands_;
};

}  // namespace fake_cudnn
