#pragma once
/// Descriptions of matrices for the tensor memory accelerator of sm_90.

#include <cuda.h>
#include <string>

#include "lib/tensor/view.hpp"

namespace llmtrain::kernels::cuda {

/// The heads of a matrix of bf16 or fp16.
struct HeadsLayout {
  std::int64_t sequences, rows, heads, head_dim;  // rows: of a sequence
};

/// Describes matrix [sequences * rows, heads * head_dim], whose rows begin at multiples of 16
/// bytes, as a tensor of (column of a head, head, row, sequence). A box is 64 columns of `box_rows`
/// rows of one head in 128-byte swizzle; what lies outside of a head or a sequence is zero. False,
/// with the reason in `why`, where the driver refuses, or rows are no whole number of heads apart.
bool describe_heads(const View& matrix, const HeadsLayout& layout, int box_rows, CUtensorMap& map,
                    std::string& why);

}  // namespace llmtrain::kernels::cuda
