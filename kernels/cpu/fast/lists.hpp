#pragma once
/// Passes over one tensor, and lists of tensors (kernels/tensor_list.hpp), in parallel.

#include <vector>

#include "kernels/cpu/fast/segments.hpp"
#include "kernels/tensor_list.hpp"

namespace llmtrain::kernels::fast {

/// Calls f(Segment) for passes over elements [begin, end).
template <class F>
void for_passes(std::int64_t begin, std::int64_t end, const F& f) {
  for (std::int64_t i = begin; i < end; i += kPass) f(Segment{0, i, std::min(kPass, end - i)});
}

/// The same over `count` elements, in parallel.
template <class F>
void parallel_passes(int threads, std::int64_t count, const F& f) {
  parallel_blocks(threads, count, kElementsPerBlock,
                  [&](std::int64_t begin, std::int64_t end) { for_passes(begin, end, f); });
}

/// Calls f(row of the list, chunk of the list, begin, end) for all chunks in parallel, where they
/// are elements [begin, end) of the row. A list of one has no table.
template <class Row, class F>
void for_chunks(int threads, const View& table, const std::vector<Row>& only, const F& f) {
  const Row* rows = table.defined() ? table.as<const Row>() : only.data();
  const auto count = table.defined() ? table.numel() / static_cast<std::int64_t>(sizeof(Row)) : 1;
  const ListPlace& last = rows[count - 1].place;
  const std::int64_t chunks = last.first_chunk + list_chunks(last.numel);
  parallel_blocks(threads, chunks, 1, [&](std::int64_t chunk, std::int64_t) {
    const std::int64_t row = row_of_chunk(rows, count, chunk);
    const ListPlace& place = rows[row].place;
    const std::int64_t begin = (chunk - place.first_chunk) * kListChunk;
    f(static_cast<std::size_t>(row), chunk, begin, std::min(place.numel, begin + kListChunk));
  });
}

/// A table in place of the one that a list of one may lack.
template <class K, class Items>
auto only_row(const View& table, const Items& items) {
  return table.defined() ? std::vector<typename K::Row>{} : K::rows(items);
}

}  // namespace llmtrain::kernels::fast
