#pragma once
/// A product as cuBLASLt's descriptors state it, computed by plain loops over column-major
/// matrices.

#include <cstdint>
#include <cublasLt.h>

namespace fake_lt {

bool is_half_width(cudaDataType_t type);
/// Of eight bits.
bool is_code(cudaDataType_t type);

/// At the beginning of what the library's opaque structures hold.
inline constexpr std::uint64_t kMagic = 0x66616b65;

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
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
  std::int8_t fast_sums = 0;

  bool biased() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool activates() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool differentiates() const { return epilogue == CUBLASLT_EPILOGUE_DGELU; }
};

struct Problem {
  Operation operation;
  Layout a, b, c, d;

  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.cols; }
  std::uint64_t k() const { return operation.transpose_a == CUBLAS_OP_T ? a.rows : a.cols; }
  bool valid() const;
  bool of_codes() const { return is_code(a.type) || is_code(b.type); }
  /// Whether Hopper multiplies these codes, as the library documents it: sums along the columns of
  /// both operands ("TN"), sizes and addresses (A, B, C, D) in units of 16 bytes, and not both in
  /// E5M2. True of all other problems.
  bool takes_codes(const std::uint32_t (&alignment)[4]) const;
  /// Of a shape and its types; algorithms belong to one.
  std::uint64_t hash() const;
};

struct Pointers {
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
};

/// Of all elements of a matrix.
std::uint64_t hash_of(const Layout& layout, const void* data);

/// Each element of D as the sum of so many partial sums over k, each in ascending order.
void multiply(const Problem& problem, const Pointers& pointers, std::uint64_t parts);

}  // namespace fake_lt
