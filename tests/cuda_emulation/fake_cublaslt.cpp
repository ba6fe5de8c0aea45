// cuBLASLt for the emulated GPU: strict about what the real one asks for, so that our descriptions
// of products are tested where there is no GPU. The real one's choice of algorithms, and what it
// refuses beyond this, only a GPU can show.
#include "tests/cuda_emulation/fake_cublaslt.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <map>
#include <string_view>

#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/fake_product.hpp"

struct cublasLtContext {
  std::uint64_t alive = 0x616c697665;
};

namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "fake cuBLASLt: %s\n", what);
  std::abort();
}

FakeCublasLt& fake() {
  static FakeCublasLt fake = [] {
    FakeCublasLt initial;
    const char* mode = std::getenv("LLMTRAIN_FAKE_CUBLASLT");
    if (mode != nullptr && std::string_view(mode) == "refuses") {
      initial.mode = FakeCublasLt::Mode::refuses;
    }
    if (mode != nullptr && std::string_view(mode) == "fickle") {
      initial.mode = FakeCublasLt::Mode::fickle;
    }
    const char* times = std::getenv("LLMTRAIN_FAKE_CUBLASLT_TIMES");
    initial.reversed_times = times != nullptr && std::string_view(times) == "reversed";
    return initial;
  }();
  return fake;
}

using namespace fake_lt;

constexpr std::size_t kWorkspaceAlignment = 256, kBiasAlignment = 16;

struct Preference {
  std::uint64_t magic = kMagic;
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

/// What a semi-opaque structure holds.
template <class T, class Opaque>
T& inside(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  if (opaque == nullptr) die("a null descriptor");
  T& value = *reinterpret_cast<T*>(opaque);
  if (value.magic != kMagic) die("a descriptor that was not initialised");
  return value;
}
template <class T, class Opaque>
void begin(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  std::memcpy(static_cast<void*>(opaque), &value, sizeof(value));
}

template <class T>
cublasStatus_t assign(T& to, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t size_of(cudaDataType_t type) { return is_code(type) ? 1 : is_half_width(type) ? 2 : 4; }

Problem problem_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {inside<Operation>(operation), inside<Layout>(a), inside<Layout>(b), inside<Layout>(c),
          inside<Layout>(d)};
}

/// An algorithm, as it lies in its opaque structure.
struct Algorithm {
  std::uint64_t id = 0;  // from 1
  /// Of addresses and leading dimensions: of B, and of everything else.
  std::uint64_t alignment_b = 0, alignment = 0;
  std::uint64_t workspace = 0, reduction = 0, microseconds = 0;
  std::uint64_t problem = 0;
  std::uint32_t swizzle = 0, unused = 0;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

/// In the order of the heuristic, which is wrong about what they take.
constexpr Algorithm kAlgorithms[] = {
    {1, 4, 16, 1 << 20, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 30},
    {2, 16, 16, 0, CUBLASLT_REDUCTION_SCHEME_NONE, 20},
    {3, 16, 16, 4096, CUBLASLT_REDUCTION_SCHEME_INPLACE, 5},
    {4, 8, 8, 64 << 10, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 12},
    {5, 2, 2, 0, CUBLASLT_REDUCTION_SCHEME_NONE, 50},
    {6, 16, 16, 0, CUBLASLT_REDUCTION_SCHEME_NONE, 17},
};
/// Takes as long as it says in its first launches for a problem only, in either order of tiles, as
/// if the GPU became hot: in two bursts of three, their warm-ups, and one round.
constexpr std::uint64_t kTires = 6;
constexpr int kTiresAfter = 16, kTiredMicroseconds = 40;
/// Takes a microsecond less in the other order of tiles; one has no other.
bool swizzles_well(const Algorithm& algorithm) { return algorithm.id == 2 || algorithm.id == 4; }
constexpr std::uint64_t kOnlyOneOrder = 5;

std::uint64_t microseconds_of(const Algorithm& algorithm) {
  static std::map<std::uint64_t, int> launches;
  const bool tired = algorithm.id == kTires && ++launches[algorithm.problem] > kTiresAfter;
  if (tired) return kTiredMicroseconds;
  return algorithm.microseconds - (algorithm.swizzle != 0 && swizzles_well(algorithm) ? 1 : 0);
}

/// Whether these all suit an algorithm: addresses, alignments or strides in bytes of A, B, C, D.
bool suit(const Algorithm& algorithm, const std::array<std::uint64_t, 4>& bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] % (i == 1 ? algorithm.alignment_b : algorithm.alignment) != 0) return false;
  }
  return true;
}

std::uint64_t stride_bytes(const Layout& layout) {
  return static_cast<std::uint64_t>(layout.ld) * size_of(layout.type);
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

extern "C" __attribute__((visibility("default"))) FakeCublasLt* fake_cublaslt() { return &fake(); }

std::size_t cublasLtGetVersion() {
  const char* other = std::getenv("LLMTRAIN_FAKE_CUBLASLT_VERSION");
  return other != nullptr ? std::strtoul(other, nullptr, 10) : 130100;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an error of the fake cuBLASLt";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  handle->alive = 0;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  begin(layout, Layout{kMagic, type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  Operation initial;
  initial.compute = compute;
  initial.scale = scale;
  begin(operation, initial);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& to = inside<Operation>(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(to.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(to.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(to.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(to.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(to.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(to.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(to.a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(to.b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return assign(to.fast_sums, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  begin(preference, Preference{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto& to = inside<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(to.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(to.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(to.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                    bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  ++fake().heuristics;
  *count = 0;
  if (fake().mode == FakeCublasLt::Mode::refuses) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Problem problem = problem_of(operation, a, b, c, d);
  if (!problem.valid()) return CUBLAS_STATUS_INVALID_VALUE;
  const auto& limits = inside<Preference>(preference);
  if (!problem.takes_codes(limits.alignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Results may also say that they are none.
  results[(*count)++] = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
  for (Algorithm algorithm : kAlgorithms) {
    const auto& least = limits.alignment;
    const bool aligned = suit(algorithm, {least[0], least[1], least[2], least[3]}) &&
                         suit(algorithm, {stride_bytes(problem.a), stride_bytes(problem.b),
                                          stride_bytes(problem.c), stride_bytes(problem.d)});
    const bool reduces = (algorithm.reduction & ~std::uint64_t{limits.reductions}) == 0;
    if (!aligned || !reduces || algorithm.workspace > limits.workspace) continue;
    if (*count == wanted) break;
    algorithm.problem = problem.hash();
    auto& result = results[(*count)++];
    result = {};
    result.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    result.workspaceSize = algorithm.workspace;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* opaque,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Problem problem = problem_of(operation, a, b, c, d);
  const auto algorithm = std::bit_cast<Algorithm>(*opaque);
  if (!problem.valid() || algorithm.problem != problem.hash()) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.swizzle != 0 && algorithm.id == kOnlyOneOrder) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* opaque,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  const auto algorithm = std::bit_cast<Algorithm>(*opaque);
  if (attribute != CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING || bytes != sizeof(algorithm.swizzle)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(value, &algorithm.swizzle, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* opaque,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (attribute != CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING) return CUBLAS_STATUS_INVALID_VALUE;
  auto algorithm = std::bit_cast<Algorithm>(*opaque);
  const cublasStatus_t status = assign(algorithm.swizzle, value, bytes);
  *opaque = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* opaque,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr || handle->alive != cublasLtContext{}.alive) die("no handle");
  const Problem problem = problem_of(operation, a_layout, b_layout, c_layout, d_layout);
  const auto algorithm = std::bit_cast<Algorithm>(*opaque);
  if (algorithm.id < 1 || algorithm.id > std::size(kAlgorithms)) die("not an algorithm");
  if (!problem.valid() || algorithm.problem != problem.hash()) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.swizzle != 0 && algorithm.id == kOnlyOneOrder)
    die("an order of tiles that no check allows");
  if (algorithm.workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (fake().mode == FakeCublasLt::Mode::breaks) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (fake().mode == FakeCublasLt::Mode::fickle && algorithm.id < 4 && --fake().patience < 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (c == d && problem.c.ld != problem.d.ld) return CUBLAS_STATUS_INVALID_VALUE;
  if (!suit(algorithm, {address(a), address(b), address(c), address(d)})) {
    die("an operand that the algorithm cannot read");
  }
  const Operation& wanted = problem.operation;
  if (problem.of_codes()) {
    const std::uint32_t bits = static_cast<std::uint32_t>(address(a) | address(b) | address(d));
    const std::uint32_t alignment[4] = {bits & ~(bits - 1), 256, 256, 256};
    if (!problem.takes_codes(alignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (wanted.a_scale == nullptr || wanted.b_scale == nullptr) die("codes without scales");
    fake().fast_sums = wanted.fast_sums != 0;
    ++fake().products_of_codes;
  }
  if (wanted.biased() && address(wanted.bias) % kBiasAlignment != 0) {
    die("a bias that no algorithm can read");
  }
  if (address(wanted.aux) % kBiasAlignment != 0) die("an epilogue's matrix that is not aligned");
  fake().epilogue = wanted.epilogue;
  if (address(workspace) % kWorkspaceAlignment != 0) die("a workspace that is not aligned");
  ++fake().products;
  fake().reduction = algorithm.reduction;
  const Pointers pointers{
      a, b, c, d, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  simt::enqueue_call(stream, [=] {
    if (algorithm.workspace > 0) std::memset(workspace, 0xff, algorithm.workspace);
    fake().operands_hash = 3 * hash_of(problem.a, a) + hash_of(problem.b, b);
    multiply(problem, pointers, algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 1 : 2);
    const std::uint64_t longest = 100, here = microseconds_of(algorithm);
    simt::pass_time(static_cast<double>(fake().reversed_times ? longest - here : here));
  });
  return CUBLAS_STATUS_SUCCESS;
}
