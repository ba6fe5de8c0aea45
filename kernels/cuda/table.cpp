#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/workspace.hpp"

namespace llmtrain::kernels::cuda {

const KernelTable& cuda_table() {
  static const KernelTable table(
      "cuda",
      [] {
        std::vector<KernelRow> rows;
        add_elementwise_rows(rows);
        add_attention_rows(rows);
        return rows;
      }(),
      workspace_rows());
  return table;
}

}  // namespace llmtrain::kernels::cuda
