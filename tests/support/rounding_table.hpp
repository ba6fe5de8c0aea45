#pragma once
/// Products as a GPU's are.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/activations.hpp"
#include "kernels/kernel.hpp"
#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::test {

/// The CPU's kernels with activation functions in the epilogues of the products in which a GPU has
/// them. They see more there than what is rounded and written, so that a kernel of its own behind
/// the product would make other bits.
inline const kernels::KernelTable& rounding_table() {
  static const kernels::KernelTable table = [] {
    const auto rows = kernels::cpu_table().rows();
    std::vector<kernels::KernelRow> all(rows.begin(), rows.end());
    const auto is_product = [](const auto& row) { return row.name == kernels::Matmul::name; };
    std::ranges::find_if(all, is_product)->run = [](const kernels::KernelCtx& ctx,
                                                    const void* kernel, const View& workspace) {
      kernels::cpu_table().find(kernels::Matmul::name)(ctx, kernel, workspace);
      const auto& product = *static_cast<const kernels::Matmul*>(kernel);
      if (product.epilogue == kernels::ProductEpilogue::none) return;
      require(product.c.contiguous() && product.c.dtype == DType::bf16, "another product");
      for (std::int64_t i = 0; i < product.c.numel(); ++i) product.c.as<std::uint16_t>()[i] ^= 1;
    };
    return kernels::KernelTable(
        "rounding", std::move(all), {}, [](kernels::Activation f, DType dtype) {
          return f == kernels::Activation::gelu_pytorch_tanh && dtype == DType::bf16;
        });
  }();
  return table;
}

}  // namespace llmtrain::test
