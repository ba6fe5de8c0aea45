#include "kernels/cuda/rules/product_scratch.hpp"

#include <algorithm>

namespace llmtrain::kernels::cuda {

namespace {

constexpr std::uint64_t kBlock = 256;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

/// From the first element to the last, gaps between rows included.
std::uint64_t span_bytes(const View& view) {
  if (!view.defined() || view.numel() == 0) return 0;
  const std::int64_t elements = (view.rows() - 1) * view.row_stride + view.cols();
  return static_cast<std::uint64_t>(elements) * size_of(view.dtype);
}

}  // namespace

std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | kBlock;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

ProductScratch::ProductScratch(const Product& product, std::uint64_t library_workspace_bytes)
    : total_bytes(round_up(library_workspace_bytes)) {
  const Matmul& mm = product.mm;
  const auto place = [this](const View& view) {
    const std::uint64_t alignment = alignment_of(view.data);
    const std::uint64_t begin = total_bytes + (alignment < kBlock ? alignment : 0);
    total_bytes = round_up(begin + span_bytes(view));
    return begin;
  };
  a = place(mm.a);
  b = place(mm.b);
  c = place(mm.c);
  bias = total_bytes;  // its alignment decides nothing, nor does that of pre
  pre = round_up(bias + span_bytes(mm.bias));
  scales = round_up(pre + span_bytes(mm.pre));
  total_bytes = scales + (product.codes ? 2 * kBlock : 0);
}

std::uint64_t tuning_scratch_bytes(std::span<const Product> products,
                                   std::uint64_t library_workspace_bytes) {
  std::uint64_t bytes = 0;
  for (const Product& product : products) {
    if (product.mm.a.dtype == DType::f64) continue;
    bytes = std::max(bytes, ProductScratch(product, library_workspace_bytes).total_bytes);
  }
  return bytes;
}

}  // namespace llmtrain::kernels::cuda
