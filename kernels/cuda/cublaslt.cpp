#include "kernels/cuda/cublaslt.hpp"

#include <algorithm>
#include <limits>

#include "kernels/activations.hpp"
#include "kernels/cuda/matmul_plain.hpp"
#include "kernels/cuda/memory.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Of the workspace and of what we put into it; also all that algorithms may ask of operands.
constexpr std::uint32_t kAlignment = 256;
/// Of a bias and of what an epilogue reads or writes beside c: there is no preference by which
/// algorithms that want it would be left out.
constexpr std::uint32_t kEpilogueAlignment = 16;
/// Of the matrices of a product of codes.
constexpr std::uint32_t kCodeAlignment = 16;
/// Elements of which the strides of an epilogue's matrix are multiples.
constexpr std::int64_t kPreStride = 8;

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Of codes by the digits of their format.
cudaDataType_t library_type(DType dtype, int digits = 0) {
  if (digits > 0) return digits == kE4M3.mantissa_bits ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
  if (dtype == DType::bf16) return CUDA_R_16BF;
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_library(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
                "to describe a product");
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check_library(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                "to state a preference");
}

std::int32_t operation_of(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// A row stride that is at least a row, also where there is one row only.
std::int64_t leading(const View& view) { return std::max(view.row_stride, view.cols()); }

/// Which sums over parts of k are allowed. In place and in the output type they pass through c's
/// type, so that a BF16 or FP16 c would be rounded more than once.
std::uint32_t reductions_of(Determinism determinism, DType out) {
  std::uint32_t allowed = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (out == DType::f32) allowed |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  if (out == DType::f32 && determinism == Determinism::fast) {
    allowed |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
  }
  return allowed;
}

cublasComputeType_t compute_type_of(const KernelCtx& ctx, DType in) {
  return ctx.tf32 && in == DType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// As the library sees a matrix of ours: its columns are our rows.
void describe(cublasLtMatrixLayout_t layout, const View& view, std::int64_t stride,
              int digits = 0) {
  check_library(cublasLtMatrixLayoutInit(layout, library_type(view.dtype, digits),
                                         static_cast<std::uint64_t>(view.cols()),
                                         static_cast<std::uint64_t>(view.rows()), stride),
                "to describe a matrix");
}

bool is_aligned(const View& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % kEpilogueAlignment == 0;
}

/// Whether the library has this epilogue for these operands. In FP32 it is not asked: how exact its
/// tanh is nobody says, and what is rounded to half the width cannot tell.
bool takes_epilogue(const Matmul& mm) {
  if (mm.epilogue == ProductEpilogue::none) return true;
  return is_half_width(mm.c.dtype) && mm.activation == Activation::gelu_pytorch_tanh &&
         is_aligned(mm.pre) && leading(mm.pre) % kPreStride == 0;
}

std::uint32_t epilogue_of(const Matmul& mm) {
  const bool biased = mm.bias.defined();
  switch (mm.epilogue) {
    case ProductEpilogue::none:
      break;
    case ProductEpilogue::activate:
      return biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case ProductEpilogue::differentiate:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

std::string_view suffix_of(ProductEpilogue epilogue) {
  switch (epilogue) {
    case ProductEpilogue::none:
      break;
    case ProductEpilogue::activate:
      return " gelu";
    case ProductEpilogue::differentiate:
      return " dgelu";
  }
  return "";
}

bool is_int(std::int64_t size) { return size <= std::numeric_limits<std::int32_t>::max(); }

std::string gpu_name(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "to describe the device");
  return fmt::format("{}, {} multiprocessors", properties.name, properties.multiProcessorCount);
}

CublasLtProducts& products_of(const KernelCtx& ctx) {
  auto& memory = static_cast<CudaMemory&>(ctx.device->backend());
  return static_cast<CublasLtProducts&>(*memory.products());
}

}  // namespace

std::string to_string(const ProductKey& key) {
  const std::string pre = key.epilogue == ProductEpilogue::none
                              ? ""
                              : fmt::format("{} {}", suffix_of(key.epilogue), key.ld_pre);
  const auto operand = [&](int digits) {
    if (digits == 0) return llmtrain::to_string(key.in);
    return digits == kE4M3.mantissa_bits ? kE4M3.name : kE5M2.name;
  };
  const std::string operands =
      key.digits_a == 0 ? std::string(operand(0))
                        : fmt::format("{}*{}{}", operand(key.digits_a), operand(key.digits_b),
                                      key.fast_sums ? " fast" : "");
  return fmt::format(
      "{}>{} {}{}{}{} m{} n{} k{} ld {} {} {} align {} {} {} reductions {} compute {} workspace "
      "{}{}",
      operands, llmtrain::to_string(key.out), key.transpose_a ? 't' : 'n',
      key.transpose_b ? 't' : 'n', key.accumulate ? "+" : "", key.biased ? "b" : "", key.m, key.n,
      key.k, key.lda, key.ldb, key.ldc, key.align_a, key.align_b, key.align_c, key.reductions,
      static_cast<int>(key.compute), key.workspace_bytes, pre);
}

bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

void check_library(cublasStatus_t status, const char* what) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed: {}", what,
                       cublasLtGetStatusString(status));
}

CublasLtProducts::CublasLtProducts(int device)
    : library_("cuBLASLt " + product_library_version()),
      gpu_(gpu_name(device)),
      choices_(empty_cache()) {
  check_library(cublasLtCreate(&handle_), "to begin");
}

CublasLtProducts::~CublasLtProducts() { cublasLtDestroy(handle_); }

std::optional<ProductCall> CublasLtProducts::call_of(const KernelCtx& ctx, const Product& product,
                                                     const View& workspace) {
  const Matmul& mm = product.mm;
  const std::optional<CodeMatmul>& codes = product.codes;
  const bool empty = mm.m() == 0 || mm.n() == 0 || mm.k() == 0;
  if (mm.a.dtype == DType::f64 || empty || !takes_epilogue(mm)) return std::nullopt;
  for (const View* view : {&mm.a, &mm.b, &mm.c}) {
    if (!is_int(view->rows()) || !is_int(leading(*view))) return std::nullopt;
  }
  const auto takes = [](const View& view) { return alignment_of(view.data) >= kCodeAlignment; };
  if (codes && !(takes(mm.a) && takes(mm.b) && takes(mm.c))) return std::nullopt;
  ProductCall call{.mm = mm};
  if (codes) {
    call.a_scale_inv = codes->a_scale_inv.as<const float>();
    call.b_scale_inv = codes->b_scale_inv.as<const float>();
  }
  auto* free = workspace.as<std::byte>();
  std::uint64_t free_bytes = workspace.defined() ? workspace.bytes() : 0;
  const auto take = [&](std::uint64_t bytes) {
    std::byte* const taken = free;
    free += bytes;
    free_bytes -= bytes;
    return taken;
  };
  if (const std::uint64_t over = reinterpret_cast<std::uintptr_t>(free) % kAlignment; over != 0) {
    take(std::min(free_bytes, kAlignment - over));
  }
  if (mm.bias.defined() && (mm.bias.dtype != mm.c.dtype || !is_aligned(mm.bias))) {
    call.mm.bias = View{nullptr, mm.c.dtype, mm.bias.shape, mm.bias.row_stride};
    const std::uint64_t bytes = round_up(call.mm.bias.bytes());
    if (bytes > free_bytes) return std::nullopt;
    call.mm.bias.data = take(bytes);
  }
  call.workspace = free_bytes > 0 ? free : nullptr;
  call.key = {.m = mm.m(),
              .n = mm.n(),
              .k = mm.k(),
              .lda = leading(mm.a),
              .ldb = leading(mm.b),
              .ldc = leading(mm.c),
              .in = mm.a.dtype,
              .out = mm.c.dtype,
              .transpose_a = mm.transpose_a,
              .transpose_b = mm.transpose_b,
              .accumulate = mm.accumulate,
              .biased = mm.bias.defined(),
              .align_a = alignment_of(mm.a.data),
              .align_b = alignment_of(mm.b.data),
              .align_c = alignment_of(mm.c.data),
              .reductions = reductions_of(ctx.determinism, mm.c.dtype),
              .compute = compute_type_of(ctx, mm.a.dtype),
              .workspace_bytes = free_bytes,
              .epilogue = mm.epilogue,
              .ld_pre = mm.epilogue == ProductEpilogue::none ? 0 : leading(mm.pre),
              .digits_a = codes ? codes->a_format.mantissa_bits : 0,
              .digits_b = codes ? codes->b_format.mantissa_bits : 0,
              .fast_sums = codes && codes->fast_sums};
  return call;
}

PreparedProduct::PreparedProduct(const ProductCall& call) {
  const Matmul& mm = call.mm;
  check_library(cublasLtMatmulDescInit(&operation, call.key.compute, CUDA_R_32F),
                "to describe a product");
  set(&operation, CUBLASLT_MATMUL_DESC_TRANSA, operation_of(mm.transpose_b));
  set(&operation, CUBLASLT_MATMUL_DESC_TRANSB, operation_of(mm.transpose_a));
  set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(mm));
  // The heuristic reads these pointers' alignment: all have at least this one, and what is chosen
  // must not depend on which came first.
  void* const least_aligned = reinterpret_cast<void*>(std::uintptr_t{kEpilogueAlignment});
  if (mm.bias.defined()) set(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, least_aligned);
  if (mm.epilogue != ProductEpilogue::none) {
    set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, least_aligned);
    set(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.key.ld_pre);
  }
  if (call.key.digits_a > 0) {
    // The library's names are the other way round.
    set(&operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, least_aligned);
    set(&operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, least_aligned);
    set(&operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(call.key.fast_sums));
  }
  describe(&a, mm.b, call.key.ldb, call.key.digits_b);
  describe(&b, mm.a, call.key.lda, call.key.digits_a);
  describe(&c, mm.c, call.key.ldc);
}

std::vector<cublasLtMatmulAlgo_t> CublasLtProducts::candidates(const ProductKey& key,
                                                               PreparedProduct& prepared) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_library(cublasLtMatmulPreferenceInit(&preference), "to state a preference");
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, key.workspace_bytes);
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, key.reductions);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, &prepared.operation, &prepared.a, &prepared.b, &prepared.c, &prepared.c, &preference,
      kMaxCandidates, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> found;
  if (status != CUBLAS_STATUS_SUCCESS) {
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
      log::warning("cuBLASLt has no algorithm for {}: {}", to_string(key),
                   cublasLtGetStatusString(status));
    }
    return found;
  }
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= key.workspace_bytes) {
      found.push_back(result.algo);
    }
  }
  return found;
}

bool CublasLtProducts::fits(const cublasLtMatmulAlgo_t& algorithm, PreparedProduct& prepared,
                            const ProductKey& key) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, &prepared.operation, &prepared.a, &prepared.b, &prepared.c,
                              &prepared.c, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= key.workspace_bytes;
}

std::optional<cublasLtMatmulAlgo_t> CublasLtProducts::remembered(const AlgorithmCache& memory,
                                                                 const ProductKey& key,
                                                                 PreparedProduct& prepared) const {
  const ProductAlgorithm* known = memory.find(to_string(key));
  if (known == nullptr) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof(algorithm.data) == sizeof(known->words));
  std::copy(known->words.begin(), known->words.end(), algorithm.data);
  if (!fits(algorithm, prepared, key)) return std::nullopt;
  return algorithm;
}

PreparedProduct& CublasLtProducts::find(const ProductCall& call) {
  const auto known = prepared_.find(call.key);
  if (known != prepared_.end()) return known->second;
  if (prepared_.size() >= kMaxPrepared) prepared_.clear();
  PreparedProduct& prepared = prepared_.try_emplace(call.key, call).first->second;
  prepared.algorithms = candidates(call.key, prepared);
  if (const auto best = remembered(choices_, call.key, prepared)) {
    prepared.algorithms.insert(prepared.algorithms.begin(), *best);
  }
  return prepared;
}

cublasStatus_t CublasLtProducts::queue(const KernelCtx& ctx, const ProductCall& call,
                                       PreparedProduct& prepared,
                                       const cublasLtMatmulAlgo_t& algorithm) const {
  const Matmul& mm = call.mm;
  if (mm.bias.defined()) {
    set(&prepared.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, mm.bias.data);
  }
  if (mm.epilogue != ProductEpilogue::none) {
    set(&prepared.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, mm.pre.data);
  }
  if (call.a_scale_inv != nullptr) {
    set(&prepared.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.b_scale_inv);
    set(&prepared.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.a_scale_inv);
  }
  const float one = 1, old = mm.accumulate ? 1 : 0;
  return cublasLtMatmul(handle_, &prepared.operation, &one, mm.b.data, &prepared.a, mm.a.data,
                        &prepared.b, &old, mm.c.data, &prepared.c, mm.c.data, &prepared.c,
                        &algorithm, call.workspace, call.key.workspace_bytes, stream_of(ctx));
}

bool CublasLtProducts::multiply(const KernelCtx& ctx, const Product& product,
                                const View& workspace) {
  const Matmul& mm = product.mm;
  const auto call = call_of(ctx, product, workspace);
  if (!call) return false;
  PreparedProduct& prepared = find(*call);
  if (prepared.algorithms.empty()) return false;
  if (call->mm.bias.data != mm.bias.data) copy_vector(ctx, mm.bias, call->mm.bias);
  while (!prepared.algorithms.empty()) {
    const cublasStatus_t status = queue(ctx, *call, prepared, prepared.algorithms.front());
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (!is_refusal(status)) check_library(status, "a product");
    log::warning("cuBLASLt refuses its own algorithm for {}: {}", to_string(call->key),
                 cublasLtGetStatusString(status));
    prepared.algorithms.erase(prepared.algorithms.begin());
  }
  return false;
}

std::unique_ptr<LibraryProducts> open_library_products(int device) {
  return std::make_unique<CublasLtProducts>(device);
}

std::string product_library_version() {
  // Major, minor and patch as decimal digits: 130100 is 13.1.0.
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

bool library_matmul(const KernelCtx& ctx, const Product& product, const View& workspace) {
  return products_of(ctx).multiply(ctx, product, workspace);
}

TunedProducts tune_library_products(const KernelCtx& ctx, std::span<const Product> products,
                                    const View& scratch, const ProductMemory& memory) {
  return products_of(ctx).tune(ctx, products, scratch, memory);
}

}  // namespace llmtrain::kernels::cuda
