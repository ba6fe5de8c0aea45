#include "kernels/cuda/rules/attention.hpp"

namespace llmtrain::kernels::cuda {

namespace {

std::int64_t granules(std::int64_t rows) {
  return (rows + kAttentionGranule - 1) / kAttentionGranule;
}

/// Bytes of what is known of a granule: two positions of keys, four of queries.
constexpr std::uint64_t kKeyBounds = 8;
constexpr std::uint64_t kQueryBounds = 16;

}  // namespace

std::string_view to_string(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::plain:
      return "plain";
    case AttentionKernel::tensor_64:
      return "tensor cores, head_dim 64";
    case AttentionKernel::tensor_96:
      return "tensor cores, head_dim 96";
    case AttentionKernel::tensor_128:
      return "tensor cores, head_dim 128";
    case AttentionKernel::tensor_256:
      return "tensor cores, head_dim 256";
  }
  return {};
}

AttentionKernel attention_rule(const AttentionShape& shape, DType dtype, bool aligned) {
  if (dtype != DType::bf16 || !aligned || shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim) {
    return AttentionKernel::plain;
  }
  if (shape.head_dim <= 64) return AttentionKernel::tensor_64;
  if (shape.head_dim <= 96) return AttentionKernel::tensor_96;
  return shape.head_dim <= 128 ? AttentionKernel::tensor_128 : AttentionKernel::tensor_256;
}

AttentionScratch::AttentionScratch(const AttentionShape& shape, std::int64_t tq, std::int64_t tk,
                                   std::uint64_t wide)
    : query_granules(granules(tq)), key_granules(granules(tk)) {
  const auto sequences = static_cast<std::uint64_t>(shape.num_sequences);
  key_bounds = sequences * static_cast<std::uint64_t>(query_granules) * kQueryBounds;
  forward_bytes = key_bounds + sequences * static_cast<std::uint64_t>(key_granules) * kKeyBounds;
  delta = (forward_bytes + 15) / 16 * 16;
  backward_bytes = delta + sequences * static_cast<std::uint64_t>(shape.num_heads * tq) * wide;
}

}  // namespace llmtrain::kernels::cuda
