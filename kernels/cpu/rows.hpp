#pragma once
/// The families of CPU kernels; each appends its rows. One reference file per family and one
/// or two fast ones.

#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::reference {
void add_matmul_rows(std::vector<KernelRow>& rows);
void add_norm_rows(std::vector<KernelRow>& rows);
void add_head_norm_rope_rows(std::vector<KernelRow>& rows);
void add_elementwise_rows(std::vector<KernelRow>& rows);
void add_optimizer_rows(std::vector<KernelRow>& rows);
void add_block_moments_rows(std::vector<KernelRow>& rows);
void add_eight_bit_rows(std::vector<KernelRow>& rows);
void add_gradient_noise_rows(std::vector<KernelRow>& rows);
void add_factored_rows(std::vector<KernelRow>& rows);
void add_projected_rows(std::vector<KernelRow>& rows);
void add_quantized_subspace_rows(std::vector<KernelRow>& rows);
void add_attention_rows(std::vector<KernelRow>& rows);
void add_loss_rows(std::vector<KernelRow>& rows);
void add_router_rows(std::vector<KernelRow>& rows);
void add_experts_rows(std::vector<KernelRow>& rows);
void add_scale_rows_rows(std::vector<KernelRow>& rows);
void add_quantize_rows(std::vector<KernelRow>& rows);
void add_census_rows(std::vector<KernelRow>& rows);
}  // namespace llmtrain::kernels::reference

namespace llmtrain::kernels::fast {
void add_matmul_rows(std::vector<KernelRow>& rows);
void add_norm_rows(std::vector<KernelRow>& rows);
void add_head_norm_rope_rows(std::vector<KernelRow>& rows);
void add_elementwise_rows(std::vector<KernelRow>& rows);
void add_optimizer_rows(std::vector<KernelRow>& rows);
void add_block_moments_rows(std::vector<KernelRow>& rows);
void add_eight_bit_rows(std::vector<KernelRow>& rows);
void add_gradient_noise_rows(std::vector<KernelRow>& rows);
void add_factored_rows(std::vector<KernelRow>& rows);
void add_projected_rows(std::vector<KernelRow>& rows);
void add_rule_update_rows(std::vector<KernelRow>& rows);
void add_attention_rows(std::vector<KernelRow>& rows);
void add_loss_rows(std::vector<KernelRow>& rows);
void add_router_rows(std::vector<KernelRow>& rows);
void add_experts_rows(std::vector<KernelRow>& rows);
void add_scale_rows_rows(std::vector<KernelRow>& rows);
void add_quantize_rows(std::vector<KernelRow>& rows);
void add_census_rows(std::vector<KernelRow>& rows);
}  // namespace llmtrain::kernels::fast
