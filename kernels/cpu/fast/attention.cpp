#include "kernels/cpu/fast/attention.hpp"

#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::fast {

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, attention_forward>());
}

}  // namespace llmtrain::kernels::fast
