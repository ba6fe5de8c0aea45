#pragma once
/// Tensor = reference-counted storage + view.

#include <cstdint>
#include <memory>
#include <string>

#include "lib/tensor/ledger.hpp"
#include "lib/tensor/view.hpp"

namespace llmtrain {

class Device;

/// A block of a device's arena; returned to it on destruction.
class Storage {
 public:
  Storage(Device& device, void* data, std::uint64_t offset, std::uint64_t bytes, Category category,
          std::string tag);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device& device() const { return *device_; }
  void* data() const { return data_; }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t bytes() const { return bytes_; }
  Category category() const { return category_; }
  const std::string& tag() const { return tag_; }

 private:
  Device* device_;
  void* data_;
  std::uint64_t offset_;
  std::uint64_t bytes_;
  Category category_;
  std::string tag_;
};

/// Copying a Tensor shares its storage; the block is freed with its last owner.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<Storage> storage, const View& view)
      : storage_(std::move(storage)), view_(view) {}

  bool defined() const { return storage_ != nullptr; }
  const View& view() const { return view_; }
  operator const View&() const { return view_; }
  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  std::int64_t numel() const { return view_.numel(); }
  std::int64_t rows() const { return view_.rows(); }
  std::int64_t cols() const { return view_.cols(); }
  Device& device() const { return storage_->device(); }
  const Storage& storage() const { return *storage_; }
  /// True if nobody else can see this storage, so that it may be overwritten in place.
  bool unique() const { return storage_.use_count() == 1; }

  /// The same elements in another shape. Strided tensors keep their innermost dim.
  Tensor reshape(const Shape& shape) const;
  /// Columns [begin, begin + count) of every row: a strided view.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  /// Rows [begin, begin + count) as a rank-2 tensor.
  Tensor row_range(std::int64_t begin, std::int64_t count) const;
  void reset() { *this = Tensor(); }

 private:
  std::shared_ptr<Storage> storage_;
  View view_;
};

}  // namespace llmtrain
