#pragma once
/// Lists of tensors (kernels/tensor_list.hpp) as the device sees them: a thread block per chunk.

#include "kernels/cuda/simt.cuh"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels::cuda {

/// The tensors of a launch: a table, or the only row.
template <class Row>
struct List {
  const Row* table;  // or null
  std::int64_t count;
  Row only;
  std::int64_t chunks;

  template <class K, class Items>
  List(const K& op, const Items& items)
      : table(op.table.template as<const Row>()),
        count(std::ssize(items)),
        only(K::rows(items.first(1)).front()),
        chunks(0) {
    for (const auto& item : items) chunks += list_chunks(numel_of(item));
  }
  static std::int64_t numel_of(const View& view) { return view.numel(); }
  template <class Tensors>
  static std::int64_t numel_of(const Tensors& tensors) {
    return tensors.to.numel();
  }

  Grid grid(int threads) const {
    return {static_cast<unsigned>(chunks), static_cast<unsigned>(threads)};
  }
  __device__ const Row& row(std::int64_t i) const { return table == nullptr ? only : table[i]; }
  __device__ const Row& row_at(std::int64_t chunk) const {
    return table == nullptr ? only : table[row_of_chunk(table, count, chunk)];
  }
};

}  // namespace llmtrain::kernels::cuda
