#pragma once
/// Products by a vendor's library: cuBLASLt, where this plugin was built with it.
///
/// The library gets `library_workspace_bytes` of workspace per product, and algorithms that want
/// more are no candidates. NVIDIA recommends 32 MiB on Hopper and 4 MiB before; more memory allows
/// sums split over k, for results too small to fill the GPU.
///
/// How results depend on the step's determinism: `layout` has every sum over k in one sequence;
/// `run` allows partial sums that a second kernel adds in a fixed order; `fast` also those that are
/// added in place. Partial sums are never rounded to BF16. FP32 products stay FP32 (no TF32).
///
/// What Matmul lacks for GELU in the same kernel, should it come: an `activation` and an `aux` view
/// [m, n] beside c. Forward: EPILOGUE_GELU_AUX_BIAS (GELU_AUX without bias) writes GELU(z) to c and
/// z, the input that backward needs, to aux (EPILOGUE_AUX_POINTER, EPILOGUE_AUX_LD: a multiple of 8
/// elements; EPILOGUE_AUX_DATA_TYPE: that of c). Backward, in the input gradient of the second
/// linear layer: EPILOGUE_DGELU reads z from aux and writes dz; DGELU_BGRAD also its column sums
/// (in BIAS_POINTER), as EPILOGUE_BGRADB does in the weight gradient: those sums are overwritten,
/// not accumulated, and rounded to c's dtype, so that ColumnSum stays the gradient of a bias. The
/// library's GELU is the tanh form. RELU maps NaN to 0 and so hides a diverged run.

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.hpp"
#include "kernels/matmul.hpp"

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
bool library_matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace);

/// Backend::tune_products.
TunedProducts tune_library_products(const KernelCtx& ctx, std::span<const Matmul> products,
                                    const View& scratch, const std::filesystem::path& file);

}  // namespace llmtrain::kernels::cuda
