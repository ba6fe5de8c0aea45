#pragma once
/// cuBLASLt for one device.
///
/// The library's matrices are column-major: what we call c [m, n] is to it the n x m matrix of c's
/// transpose, with the same storage. So it computes c^T = op(b)^T op(a)^T: its A is our b, its B is
/// our a, both not transposed where ours are not, and its bias, one element per row of D, is one
/// per column of c.

#include <cublasLt.h>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/library_matmul.hpp"
#include "kernels/cuda/rules/algorithm_cache.hpp"
#include "kernels/cuda/rules/product_scratch.hpp"
#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// Everything that the choice of an algorithm depends on, in our terms.
struct ProductKey {
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  DType in, out;  // of codes: uint8
  bool transpose_a, transpose_b, accumulate, biased;
  /// Powers of two that the addresses are multiples of; 256 stands for more as well.
  std::uint32_t align_a, align_b, align_c;
  /// Of cublasLtReductionScheme_t, those allowed.
  std::uint32_t reductions;
  cublasComputeType_t compute;
  std::uint64_t workspace_bytes;
  ProductEpilogue epilogue;
  std::int64_t ld_pre;  // 0 without an epilogue
  /// Of codes: digits of the formats of a and b, which tell e4m3 (3) from e5m2 (2); else 0.
  int digits_a, digits_b;
  bool fast_sums;
  auto operator<=>(const ProductKey&) const = default;
};

/// As it stands in the file of measured algorithms.
std::string to_string(const ProductKey& key);

/// A product with what the library needs beside it.
struct ProductCall {
  Matmul mm;  // its bias is as the library wants it
  /// Of a product of codes; null: of numbers.
  const float *a_scale_inv = nullptr, *b_scale_inv = nullptr;
  ProductKey key;
  void* workspace = nullptr;
};

/// A product's descriptors, in the library's terms, which stay where they were made, and its
/// algorithms, best first; none where the library does not take it.
struct PreparedProduct {
  explicit PreparedProduct(const ProductCall& call);
  PreparedProduct(const PreparedProduct&) = delete;
  PreparedProduct& operator=(const PreparedProduct&) = delete;

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  std::vector<cublasLtMatmulAlgo_t> algorithms;
};

/// Whether the library refused what it was asked for, and queued nothing; any other failure is the
/// device's.
bool is_refusal(cublasStatus_t status);
/// DeviceError unless `status` is success.
void check_library(cublasStatus_t status, const char* what);

class CublasLtProducts final : public LibraryProducts {
 public:
  /// For the current device, which is the given one.
  explicit CublasLtProducts(int device);
  ~CublasLtProducts() override;
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  /// library_matmul().
  bool multiply(const KernelCtx& ctx, const Product& product, const View& workspace);
  /// tune_library_products().
  TunedProducts tune(const KernelCtx& ctx, std::span<const Product> products, const View& scratch,
                     const ProductMemory& memory);

 private:
  /// Generation meets a new shape at every length, hence the bound.
  static constexpr std::size_t kMaxPrepared = 1024;
  static constexpr int kMaxCandidates = 16;

  /// What the library is to be given; nothing where sizes are beyond it, codes at addresses that it
  /// does not take, or the workspace has no room for the bias that it wants. Queues nothing.
  static std::optional<ProductCall> call_of(const KernelCtx& ctx, const Product& product,
                                            const View& workspace);
  PreparedProduct& find(const ProductCall& call);
  /// What the heuristic proposes, within the key's limits.
  std::vector<cublasLtMatmulAlgo_t> candidates(const ProductKey& key,
                                               PreparedProduct& prepared) const;
  /// The same and, of each, the one with the other order of tiles, which the heuristic hardly ever
  /// proposes: where neighbours find each other's operands in L2.
  std::vector<cublasLtMatmulAlgo_t> variants(const ProductKey& key,
                                             PreparedProduct& prepared) const;
  /// Whether the library can compute the product so, within the key's workspace.
  bool fits(const cublasLtMatmulAlgo_t& algorithm, PreparedProduct& prepared,
            const ProductKey& key) const;
  /// The product's algorithm among those remembered, if there is one and it fits.
  std::optional<cublasLtMatmulAlgo_t> remembered(const AlgorithmCache& memory,
                                                 const ProductKey& key,
                                                 PreparedProduct& prepared) const;
  cublasStatus_t queue(const KernelCtx& ctx, const ProductCall& call, PreparedProduct& prepared,
                       const cublasLtMatmulAlgo_t& algorithm) const;
  /// As multiply() will have it, with a workspace that is not there.
  static std::optional<ProductCall> call_of_step(const KernelCtx& ctx, const Product& product);
  /// The fastest of the candidates, by trial in scratch memory; nothing without room, or when none
  /// runs.
  std::optional<ProductAlgorithm> measure(const KernelCtx& ctx, const Product& product,
                                          ProductCall call, const View& scratch) const;
  AlgorithmCache empty_cache() const { return {library_, gpu_}; }

  std::string library_, gpu_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductKey, PreparedProduct> prepared_;
  /// What tune() decided.
  AlgorithmCache choices_;
};

}  // namespace llmtrain::kernels::cuda
