#include "kernels/cuda/cudnn_graph.hpp"

#include <utility>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

namespace {

/// Of every operand's address, in bytes.
constexpr std::int64_t kAlignment = 16;

void check_cudnn(const CudnnApi& api, cudnnStatus_t status, const char* what, int which) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw CudnnRefusal(fmt::format("{} {}: {}", what, which, api.explain(status)));
}

CudnnDims packed(const CudnnDims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, cudnnBackendDescriptorType_t type)
    : api_(&api) {
  check_cudnn(api, api.create_descriptor(type, &descriptor_), "descriptor of type", type);
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) api_->destroy_descriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name,
                                          cudnnBackendAttributeType_t type, std::int64_t count,
                                          const void* values) {
  check_cudnn(*api_, api_->set_attribute(descriptor_, name, type, count, values), "attribute",
              name);
  return *this;
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  check_cudnn(*api_, api_->finalize(descriptor_), "to finalize", 0);
  return *this;
}

std::int64_t CudnnDescriptor::read(cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, std::int64_t count,
                                   void* values) const {
  std::int64_t found = 0;
  check_cudnn(*api_, api_->get_attribute(descriptor_, name, type, count, &found, values),
              "attribute", name);
  return found;
}

CudnnDescriptor& CudnnGraph::keep(CudnnDescriptor descriptor) {
  kept_.push_back(std::make_unique<CudnnDescriptor>(std::move(descriptor)));
  return *kept_.back();
}

CudnnTensor CudnnGraph::tensor(std::int64_t uid, cudnnDataType_t type, const CudnnDims& dims,
                               const CudnnDims& strides, bool is_virtual, bool by_value) {
  CudnnDescriptor& tensor = keep({api_, CUDNN_BACKEND_TENSOR_DESCRIPTOR});
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(dims))
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value)
      .finalize();
  return {&tensor, dims, strides, type};
}

CudnnTensor CudnnGraph::operand(std::int64_t uid, cudnnDataType_t type, const CudnnDims& dims,
                                const CudnnDims& strides) {
  return tensor(uid, type, dims, strides, false, false);
}

CudnnTensor CudnnGraph::scalar(std::int64_t uid, cudnnDataType_t type) {
  return tensor(uid, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

CudnnTensor CudnnGraph::virtual_tensor(const CudnnDims& dims, cudnnDataType_t type) {
  return tensor(next_virtual_++, type, dims, packed(dims), true, false);
}

CudnnDescriptor& CudnnGraph::operation(cudnnBackendDescriptorType_t type) {
  CudnnDescriptor& operation = keep({api_, type});
  operations_.push_back(operation.get());
  return operation;
}

CudnnDescriptor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                      std::optional<std::int64_t> axis) {
  CudnnDescriptor description(api_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  description.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  if (axis) description.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *axis);
  description.finalize();
  return description;
}

void CudnnGraph::matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c) {
  const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  CudnnDescriptor& product = keep({api_, CUDNN_BACKEND_MATMUL_DESCRIPTOR});
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, sums).finalize();
  operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product)
      .finalize();
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t by, const CudnnTensor& x, const CudnnTensor& y) {
  const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  CudnnDescriptor& reduction = keep({api_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR});
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, sums)
      .finalize();
  operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction)
      .finalize();
}

void CudnnGraph::unary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& y) {
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(pointwise(mode, CUDNN_DATA_FLOAT)))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor)
      .finalize();
}

CudnnTensor CudnnGraph::unary(cudnnPointwiseMode_t mode, const CudnnTensor& x) {
  const CudnnTensor y = virtual_tensor(x.dims);
  unary(mode, x, y);
  return y;
}

void CudnnGraph::binary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                        const CudnnTensor& y) {
  const bool compares = y.type == CUDNN_DATA_BOOLEAN;
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
           keep(pointwise(mode, compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT)))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor)
      .finalize();
}

CudnnTensor CudnnGraph::binary(cudnnPointwiseMode_t mode, const CudnnTensor& x,
                               const CudnnTensor& b) {
  const CudnnTensor y = virtual_tensor(x.dims);
  binary(mode, x, b, y);
  return y;
}

CudnnTensor CudnnGraph::index(const CudnnTensor& like, std::int64_t axis) {
  const CudnnTensor y = virtual_tensor(like.dims, CUDNN_DATA_INT32);
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
           keep(pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis)))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *like.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor)
      .finalize();
  return y;
}

CudnnTensor CudnnGraph::compare(cudnnPointwiseMode_t mode, const CudnnTensor& x,
                                const CudnnTensor& b) {
  const CudnnTensor y = virtual_tensor(x.dims, CUDNN_DATA_BOOLEAN);
  binary(mode, x, b, y);
  return y;
}

CudnnTensor CudnnGraph::select(const CudnnTensor& condition, const CudnnTensor& x,
                               const CudnnTensor& other) {
  const CudnnTensor y = virtual_tensor(x.dims);
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
           keep(pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT)))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *other.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor)
      .finalize();
  return y;
}

CudnnTensor CudnnGraph::transposed(const CudnnTensor& x, cudnnDataType_t type) {
  const CudnnDims dims{x.dims[0], x.dims[1], x.dims[3], x.dims[2]};
  const CudnnDims strides{x.strides[0], x.strides[1], x.strides[3], x.strides[2]};
  const CudnnTensor y = tensor(next_virtual_++, type, dims, strides, true, false);
  operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.descriptor)
      .finalize();
  return y;
}

CudnnDescriptor CudnnGraph::finish(cudnnHandle_t handle) {
  CudnnDescriptor graph(api_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            std::span<const cudnnBackendDescriptor_t>(operations_));
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.finalize();
  return graph;
}

}  // namespace llmtrain::kernels::cuda
