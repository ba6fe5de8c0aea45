#pragma once
/// The families of CPU kernels; each appends its rows. One reference and one fast file per family.

#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::reference {
void add_matmul_rows(std::vector<KernelRow>& rows);
void add_norm_rows(std::vector<KernelRow>& rows);
void add_elementwise_rows(std::vector<KernelRow>& rows);
void add_optimizer_rows(std::vector<KernelRow>& rows);
void add_attention_rows(std::vector<KernelRow>& rows);
void add_loss_rows(std::vector<KernelRow>& rows);
}  // namespace llmtrain::kernels::reference

namespace llmtrain::kernels::fast {
void add_matmul_rows(std::vector<KernelRow>& rows);
void add_norm_rows(std::vector<KernelRow>& rows);
void add_elementwise_rows(std::vector<KernelRow>& rows);
void add_optimizer_rows(std::vector<KernelRow>& rows);
void add_attention_rows(std::vector<KernelRow>& rows);
void add_loss_rows(std::vector<KernelRow>& rows);
}  // namespace llmtrain::kernels::fast

namespace llmtrain::kernels {
/// A table row for kernel struct K from a typed function.
template <class K, void (*function)(const KernelCtx&, const K&, const View&)>
constexpr KernelRow row_of() {
  return {K::name, [](const KernelCtx& ctx, const void* kernel, const View& workspace) {
            function(ctx, *static_cast<const K*>(kernel), workspace);
          }};
}
}  // namespace llmtrain::kernels
