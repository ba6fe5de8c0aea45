#pragma once
/// The different matrix products among many, as choosing algorithms for them sees them.

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "kernels/code_matmul.hpp"

namespace llmtrain::plan {

/// Products are the same when sizes, strides, types, formats, forms, and the alignments of their
/// addresses agree.
class ProductList {
 public:
  void add(const kernels::Product& product);
  /// In the order of first appearance.
  std::span<const kernels::Product> all() const { return products_; }

 private:
  using Key = std::array<std::int64_t, 22>;
  static Key key_of(const kernels::Product& product);

  std::set<Key> known_;
  std::vector<kernels::Product> products_;
};

}  // namespace llmtrain::plan
