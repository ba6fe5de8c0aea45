#pragma once
/// Lists of tensors that one launch goes through: a step needs not one launch per parameter.
///
/// Where a tensor's elements are in a list is said by a table in the device's memory, made once by
/// whoever owns the tensors, which stay where they are. The work is cut into chunks of consecutive
/// elements; a chunk lies in one tensor.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// Elements of a chunk.
inline constexpr std::int64_t kListChunk = 1 << 14;

constexpr std::int64_t list_chunks(std::int64_t numel) {
  return (numel + kListChunk - 1) / kListChunk;
}

/// Room for the sums of the chunks of `runs` runs of `each` elements that are summed one by one; a
/// run of one chunk needs none.
constexpr std::uint64_t chunk_sums_bytes(std::int64_t runs, std::int64_t each) {
  const std::int64_t chunks = list_chunks(each);
  return chunks > 1 ? static_cast<std::uint64_t>(runs * chunks) * sizeof(double) : 0;
}

/// Where the chunks of a tensor lie among all. Rows of tables have these members too.
struct ListPlace {
  std::int64_t numel = 0;
  std::int64_t first_chunk = 0;
};

/// The row that has this chunk: the last that begins at it or before. Rows without elements have
/// none.
template <class Row>
constexpr std::int64_t row_of_chunk(const Row* rows, std::int64_t count, std::int64_t chunk) {
  std::int64_t low = 0;
  while (count > 1) {
    const std::int64_t half = count / 2;
    if (rows[low + half].place.first_chunk <= chunk) low += half;
    count -= half;
  }
  return low;
}

/// A table's rows, where `make(item)` is a row with its place's numel.
template <class Row, class Item, class Make>
std::vector<Row> table_rows(std::span<const Item> items, const Make& make) {
  std::vector<Row> rows;
  std::int64_t chunks = 0;
  for (const Item& item : items) {
    Row& row = rows.emplace_back(make(item));
    row.place.first_chunk = chunks;
    chunks += list_chunks(row.place.numel);
  }
  return rows;
}

template <class Row>
constexpr std::int64_t table_bytes(std::size_t rows) {
  return static_cast<std::int64_t>(rows * sizeof(Row));
}

/// The table of kernel K for these tensors: uint8, in the memory of `device`.
template <class K, class Items>
Tensor make_table(Device& device, const Items& items, std::string_view tag) {
  const auto rows = K::rows(items);
  const Tensor table = device.allocate({table_bytes<typename K::Row>(rows.size())}, DType::u8,
                                       Category::optimizer, tag);
  device.copy_from_host(table, std::as_bytes(std::span(rows)));
  return table;
}

}  // namespace llmtrain::kernels
