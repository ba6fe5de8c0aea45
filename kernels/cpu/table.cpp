#include <algorithm>

#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels {

namespace {

std::vector<KernelRow> reference_rows() {
  std::vector<KernelRow> rows;
  reference::add_matmul_rows(rows);
  reference::add_norm_rows(rows);
  reference::add_head_norm_rope_rows(rows);
  reference::add_elementwise_rows(rows);
  reference::add_optimizer_rows(rows);
  reference::add_block_moments_rows(rows);
  reference::add_eight_bit_rows(rows);
  reference::add_gradient_noise_rows(rows);
  reference::add_factored_rows(rows);
  reference::add_projected_rows(rows);
  reference::add_quantized_subspace_rows(rows);
  reference::add_attention_rows(rows);
  reference::add_loss_rows(rows);
  reference::add_router_rows(rows);
  reference::add_experts_rows(rows);
  reference::add_scale_rows_rows(rows);
  reference::add_quantize_rows(rows);
  reference::add_census_rows(rows);
  return rows;
}

std::vector<KernelRow> fast_rows() {
  std::vector<KernelRow> rows;
  fast::add_matmul_rows(rows);
  fast::add_norm_rows(rows);
  fast::add_head_norm_rope_rows(rows);
  fast::add_elementwise_rows(rows);
  fast::add_optimizer_rows(rows);
  fast::add_block_moments_rows(rows);
  fast::add_eight_bit_rows(rows);
  fast::add_gradient_noise_rows(rows);
  fast::add_factored_rows(rows);
  fast::add_projected_rows(rows);
  fast::add_rule_update_rows(rows);
  fast::add_attention_rows(rows);
  fast::add_loss_rows(rows);
  fast::add_router_rows(rows);
  fast::add_experts_rows(rows);
  fast::add_scale_rows_rows(rows);
  fast::add_quantize_rows(rows);
  fast::add_census_rows(rows);
  return rows;
}

}  // namespace

const KernelTable& cpu_reference_table() {
  static const KernelTable table("cpu reference", reference_rows());
  return table;
}

const KernelTable& cpu_table() {
  static const KernelTable table("cpu", [] {
    std::vector<KernelRow> rows = reference_rows();
    for (const KernelRow& fast : fast_rows()) {
      const auto slow = std::find_if(rows.begin(), rows.end(),
                                     [&](const KernelRow& row) { return row.name == fast.name; });
      if (slow == rows.end()) {
        rows.push_back(fast);
      } else {
        *slow = fast;
      }
    }
    return rows;
  }());
  return table;
}

}  // namespace llmtrain::kernels
