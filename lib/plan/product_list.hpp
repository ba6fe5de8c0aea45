#pragma once
/// The different matrix products among many, as choosing algorithms for them sees them.

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "kernels/matmul.hpp"

namespace llmtrain::plan {

/// Products are the same when sizes, strides, types, forms, and the alignments of their addresses
/// agree.
class ProductList {
 public:
  void add(const kernels::Matmul& mm);
  /// In the order of first appearance.
  std::span<const kernels::Matmul> all() const { return products_; }

 private:
  using Key = std::array<std::int64_t, 19>;
  static Key key_of(const kernels::Matmul& mm);

  std::set<Key> known_;
  std::vector<kernels::Matmul> products_;
};

}  // namespace llmtrain::plan
