#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/workspace.hpp"

namespace llmtrain::kernels::cuda {

const KernelTable& cuda_table() {
  static const KernelTable table(
      "cuda",
      [] {
        std::vector<KernelRow> rows;
        add_elementwise_rows(rows);
        add_activation_rows(rows);
        add_gradient_norm_rows(rows);
        add_optimizer_rows(rows);
        add_block_moments_rows(rows);
        add_eight_bit_rows(rows);
        add_gradient_noise_rows(rows);
        add_factored_rows(rows);
        add_matrix_step_rows(rows);
        add_rule_update_rows(rows);
        add_norm_rows(rows);
        add_head_norm_rope_rows(rows);
        add_column_sum_rows(rows);
        add_rope_rows(rows);
        add_dropout_rows(rows);
        add_loss_rows(rows);
        add_sum_rows(rows);
        add_embedding_rows(rows);
        add_matmul_rows(rows);
        add_attention_rows(rows);
        add_attention_merge_rows(rows);
        add_router_rows(rows);
        add_router_choices_rows(rows);
        add_experts_rows(rows);
        add_scale_rows_rows(rows);
        add_quantize_rows(rows);
        add_census_rows(rows);
        return rows;
      }(),
      workspace_rows(), fuses_activation);
  return table;
}

}  // namespace llmtrain::kernels::cuda
