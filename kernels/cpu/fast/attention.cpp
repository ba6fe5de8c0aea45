#include "kernels/cpu/fast/attention.hpp"

#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::fast {

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, attention_forward>());
  rows.push_back(row_of<AttentionBackward, attention_backward>());
  rows.push_back(row_of<AttentionMerge, attention_merge>());
  rows.push_back(row_of<Rope, rope>());
}

}  // namespace llmtrain::kernels::fast
