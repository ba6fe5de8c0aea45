#pragma once
/// Products by a vendor's library: cuBLASLt, where this plugin was built with it.
///
/// The library gets `library_workspace_bytes` of workspace per product, and algorithms that want
/// more are no candidates. NVIDIA recommends 32 MiB on Hopper and 4 MiB before; more memory allows
/// sums split over k, for results too small to fill the GPU.
///
/// How results depend on the step's determinism: `run` allows partial sums that a second kernel
/// adds in a fixed order; `fast` also those that are added in place; under `layout` no library is
/// asked, because its choice changes with m. Partial sums are never rounded to BF16 or FP16. FP32
/// operands are rounded to TF32 where KernelCtx::tf32 says so, else products of FP32 stay FP32.
///
/// Products of codes are the library's "TN" form: on Hopper it has no other. Their scales are
/// device pointers. Fast accumulation is on where CodeMatmul::fast_sums says so (Transformer
/// Engine: in the forward alone). Determinism is theirs as well.
///
/// Epilogues: GELU (EPILOGUE_GELU_AUX_BIAS, GELU_AUX without bias) and its derivative (DGELU), in
/// the tanh form, which is the library's; both see the sum in FP32 and leave or find z in c's
/// dtype. ColumnSum stays the gradient of a bias: BGRADB overwrites where we accumulate, and adds
/// in an order of its own. RELU maps NaN to 0 and so hides a diverged run.

#include <memory>
#include <span>
#include <string>

#include "kernels/backend.hpp"
#include "kernels/code_matmul.hpp"

namespace llmtrain::kernels::cuda {

/// What the library keeps for one device: its handle, and descriptors and algorithms of the shapes
/// it met.
class LibraryProducts {
 public:
  virtual ~LibraryProducts() = default;
};

/// For the device that is current, whose number is given; null without a library.
std::unique_ptr<LibraryProducts> open_library_products(int device);

/// "13.1.0"; empty without a library.
std::string product_library_version();

/// Queues the product unless the library does not take it: then returns false, having done nothing.
/// A bias in another dtype than c's, or at an address that is no multiple of 16 bytes, is first
/// copied to the workspace in c's dtype, rounded to it. k, m and n are positive.
bool library_matmul(const KernelCtx& ctx, const Product& product, const View& workspace);

/// Backend::tune_products.
TunedProducts tune_library_products(const KernelCtx& ctx, std::span<const Product> products,
                                    const View& scratch, const ProductMemory& memory);

}  // namespace llmtrain::kernels::cuda
