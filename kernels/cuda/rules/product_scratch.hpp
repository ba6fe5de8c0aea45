#pragma once
/// Where a GPU's products are timed: memory beside the step's own, as much as a plan knows.

#include <cstdint>
#include <span>

#include "kernels/code_matmul.hpp"

namespace llmtrain::kernels::cuda {

/// The largest power of two, at most 256, that an address is a multiple of: all that an algorithm
/// may ask of operands.
std::uint32_t alignment_of(const void* address);

/// Offsets in bytes, from an address that is a multiple of 256, of the library's workspace and of
/// operands whose addresses have the alignments of the product's own.
struct ProductScratch {
  std::uint64_t workspace = 0, a = 0, b = 0, c = 0, bias = 0, pre = 0;
  /// Of codes: those of a and b, 256 bytes apart.
  std::uint64_t scales = 0;
  std::uint64_t total_bytes = 0;

  ProductScratch(const Product& product, std::uint64_t library_workspace_bytes);
};

/// What is enough for each of the products, one after another; 0 where no library takes them
/// (fp64).
std::uint64_t tuning_scratch_bytes(std::span<const Product> products,
                                   std::uint64_t library_workspace_bytes);

}  // namespace llmtrain::kernels::cuda
