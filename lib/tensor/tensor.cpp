#include "lib/tensor/tensor.hpp"

#include "lib/base/require.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

Storage::Storage(Device& device, void* data, std::uint64_t offset, std::uint64_t bytes,
                 Category category, std::string tag)
    : device_(&device),
      data_(data),
      offset_(offset),
      bytes_(bytes),
      category_(category),
      tag_(std::move(tag)) {}

Storage::~Storage() { device_->release(*this); }

Tensor Tensor::reshape(const Shape& shape) const {
  require(shape.numel() == numel(), "reshape of {} to {}", to_string(this->shape()),
          to_string(shape));
  View view = view_;
  view.shape = shape;
  if (view_.contiguous()) {
    view.row_stride = shape.cols();
  } else {
    require(shape.cols() == cols(), "a strided tensor {} keeps its innermost dim, not {}",
            to_string(this->shape()), to_string(shape));
  }
  return {storage_, view};
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && count >= 0 && begin + count <= cols(), "columns [{}, +{}) of {}", begin,
          count, to_string(shape()));
  View view = view_;
  view.shape = shape().with(shape().rank() - 1, count);
  view.data =
      static_cast<std::byte*>(view_.data) + static_cast<std::size_t>(begin) * size_of(view_.dtype);
  return {storage_, view};
}

Tensor Tensor::row_range(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && count >= 0 && begin + count <= rows(), "rows [{}, +{}) of {}", begin, count,
          to_string(shape()));
  View view = view_;
  view.shape = Shape{count, cols()};
  view.data = static_cast<std::byte*>(view_.data) +
              static_cast<std::size_t>(begin * view_.row_stride) * size_of(view_.dtype);
  return {storage_, view};
}

}  // namespace llmtrain
