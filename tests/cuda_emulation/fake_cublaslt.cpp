// cuBLASLt for the emulated GPU: plain loops over column-major matrices, strict about what the
// real one asks for, so that our descriptions of products are tested where there is no GPU. The
// real one's choice of algorithms, and what it refuses beyond this, only a GPU can show.
#include "tests/cuda_emulation/fake_cublaslt.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <string_view>

#include "tests/cuda_emulation/emulation.hpp"

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
    return initial;
  }();
  return fake;
}

constexpr std::uint64_t kMagic = 0x66616b65;
constexpr std::size_t kWorkspaceAlignment = 256, kBiasAlignment = 16;

struct Layout {
  std::uint64_t magic = kMagic;
  cudaDataType_t type{};
  std::uint64_t rows = 0, cols = 0;
  std::int64_t ld = 0;
};
struct Operation {
  std::uint64_t magic = kMagic;
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
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

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }

struct Problem {
  Operation operation;
  Layout a, b, c, d;

  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.cols; }
  std::uint64_t k() const { return operation.transpose_a == CUBLAS_OP_T ? a.rows : a.cols; }
  bool valid() const;
  /// Of a shape and its types; algorithms belong to one.
  std::uint64_t hash() const;
};

bool Problem::valid() const {
  const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->rows == 0 || layout->cols == 0) return false;
    if (layout->ld < static_cast<std::int64_t>(layout->rows)) return false;
    if (layout->type != CUDA_R_16BF && layout->type != CUDA_R_32F) return false;
  }
  const bool sizes = (ta ? a.cols : a.rows) == m() && (tb ? b.cols : b.rows) == k() &&
                     (tb ? b.rows : b.cols) == n() && c.rows == m() && c.cols == n();
  const bool types = operation.compute == CUBLAS_COMPUTE_32F && operation.scale == CUDA_R_32F &&
                     a.type == b.type && c.type == d.type &&
                     (a.type == CUDA_R_16BF || d.type == CUDA_R_32F);
  const bool biased = operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!biased && operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
  return sizes && types && (!biased || operation.bias != nullptr);
}

std::uint64_t Problem::hash() const {
  std::uint64_t hash = 14695981039346656037u;
  const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const Layout* layout : {&a, &b, &c, &d}) {
    mix(static_cast<std::uint64_t>(layout->type));
    mix(layout->rows);
    mix(layout->cols);
    mix(static_cast<std::uint64_t>(layout->ld));
  }
  mix(static_cast<std::uint64_t>(operation.transpose_a));
  mix(static_cast<std::uint64_t>(operation.transpose_b));
  mix(operation.epilogue);
  return hash;
}

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
  std::uint64_t unused = 0;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

/// In the order of the heuristic, which is wrong about what they take.
constexpr Algorithm kAlgorithms[] = {
    {1, 4, 16, 1 << 20, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 30},
    {2, 16, 16, 0, CUBLASLT_REDUCTION_SCHEME_NONE, 20},
    {3, 16, 16, 4096, CUBLASLT_REDUCTION_SCHEME_INPLACE, 5},
    {4, 8, 8, 64 << 10, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 12},
    {5, 2, 2, 0, CUBLASLT_REDUCTION_SCHEME_NONE, 50},
};

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

float read(const void* data, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
}

void write(void* data, cudaDataType_t type, std::size_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
    return;
  }
  const std::uint32_t u = __float_as_uint(value);
  const std::uint32_t rounded = value != value ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u);
  static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(rounded >> 16);
}

struct Pointers {
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
};

/// Element (row, col) of op(matrix) lies here.
std::size_t place(const Layout& layout, bool transposed, std::uint64_t row, std::uint64_t col) {
  if (transposed) std::swap(row, col);
  return col * static_cast<std::uint64_t>(layout.ld) + row;
}

void multiply(const Problem& problem, const Pointers& p, std::uint64_t parts) {
  const bool ta = problem.operation.transpose_a == CUBLAS_OP_T;
  const bool tb = problem.operation.transpose_b == CUBLAS_OP_T;
  const std::uint64_t k = problem.k(), depth = (k + parts - 1) / parts;
  for (std::uint64_t j = 0; j < problem.n(); ++j) {
    for (std::uint64_t i = 0; i < problem.m(); ++i) {
      float total = 0;
      for (std::uint64_t first = 0; first < k; first += depth) {
        float sum = 0;
        for (std::uint64_t l = first; l < std::min(k, first + depth); ++l) {
          sum += read(p.a, problem.a.type, place(problem.a, ta, i, l)) *
                 read(p.b, problem.b.type, place(problem.b, tb, l, j));
        }
        total += sum;
      }
      total *= p.alpha;
      if (p.beta != 0) total += p.beta * read(p.c, problem.c.type, place(problem.c, false, i, j));
      if (problem.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        total += read(problem.operation.bias, problem.d.type, i);
      }
      write(p.d, problem.d.type, place(problem.d, false, i, j), total);
    }
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) FakeCublasLt* fake_cublaslt() { return &fake(); }

std::size_t cublasLtGetVersion() { return 130100; }
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
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
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
  if (algorithm.workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (fake().mode == FakeCublasLt::Mode::fickle && algorithm.id < 4) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (c == d && problem.c.ld != problem.d.ld) return CUBLAS_STATUS_INVALID_VALUE;
  if (!suit(algorithm, {address(a), address(b), address(c), address(d)})) {
    die("an operand that the algorithm cannot read");
  }
  const bool biased = problem.operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (biased && address(problem.operation.bias) % kBiasAlignment != 0) {
    die("a bias that no algorithm can read");
  }
  if (address(workspace) % kWorkspaceAlignment != 0) die("a workspace that is not aligned");
  ++fake().products;
  fake().reduction = algorithm.reduction;
  const Pointers pointers{
      a, b, c, d, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  simt::enqueue_call(stream, [=] {
    if (algorithm.workspace > 0) std::memset(workspace, 0xff, algorithm.workspace);
    multiply(problem, pointers, algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 1 : 2);
    simt::pass_time(static_cast<double>(algorithm.microseconds));
  });
  return CUBLAS_STATUS_SUCCESS;
}
