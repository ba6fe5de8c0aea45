// Builds without cuBLASLt: every product is our own.
#include "kernels/cuda/library_matmul.hpp"

namespace llmtrain::kernels::cuda {

std::unique_ptr<LibraryProducts> open_library_products(int) { return nullptr; }

std::string product_library_version() { return {}; }

bool library_matmul(const KernelCtx&, const Product&, const View&) { return false; }

TunedProducts tune_library_products(const KernelCtx&, std::span<const Product> products,
                                    const View&, const ProductMemory& memory) {
  return {.left_out = products.size(), .choices = std::string(memory.choices)};
}

}  // namespace llmtrain::kernels::cuda
