#pragma once
/// The families of CUDA kernels; each appends its rows.

#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::cuda {
void add_elementwise_rows(std::vector<KernelRow>& rows);
void add_activation_rows(std::vector<KernelRow>& rows);
void add_dropout_rows(std::vector<KernelRow>& rows);
void add_norm_rows(std::vector<KernelRow>& rows);
void add_head_norm_rope_rows(std::vector<KernelRow>& rows);
void add_loss_rows(std::vector<KernelRow>& rows);
void add_sum_rows(std::vector<KernelRow>& rows);
void add_embedding_rows(std::vector<KernelRow>& rows);
void add_gradient_norm_rows(std::vector<KernelRow>& rows);
void add_optimizer_rows(std::vector<KernelRow>& rows);
void add_block_moments_rows(std::vector<KernelRow>& rows);
void add_eight_bit_rows(std::vector<KernelRow>& rows);
void add_gradient_noise_rows(std::vector<KernelRow>& rows);
void add_factored_rows(std::vector<KernelRow>& rows);
void add_matrix_step_rows(std::vector<KernelRow>& rows);
void add_rule_update_rows(std::vector<KernelRow>& rows);
void add_column_sum_rows(std::vector<KernelRow>& rows);
void add_rope_rows(std::vector<KernelRow>& rows);
void add_attention_rows(std::vector<KernelRow>& rows);
void add_attention_merge_rows(std::vector<KernelRow>& rows);
void add_matmul_rows(std::vector<KernelRow>& rows);
void add_router_rows(std::vector<KernelRow>& rows);
void add_router_choices_rows(std::vector<KernelRow>& rows);
void add_experts_rows(std::vector<KernelRow>& rows);
void add_scale_rows_rows(std::vector<KernelRow>& rows);
void add_quantize_rows(std::vector<KernelRow>& rows);
void add_census_rows(std::vector<KernelRow>& rows);

/// All of them.
const KernelTable& cuda_table();
}  // namespace llmtrain::kernels::cuda
