#include "tests/cuda_emulation/fake_product.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/quantize/number_format.hpp"
#include "lib/tensor/dtype.hpp"

namespace fake_lt {

bool is_half_width(cudaDataType_t type) { return type == CUDA_R_16BF || type == CUDA_R_16F; }
bool is_code(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

bool Problem::valid() const {
  const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->rows == 0 || layout->cols == 0) return false;
    if (layout->ld < static_cast<std::int64_t>(layout->rows)) return false;
    const bool known = layout->type == CUDA_R_32F || is_half_width(layout->type);
    if (!known && !(is_code(layout->type) && (layout == &a || layout == &b))) return false;
  }
  const bool sizes = (ta ? a.cols : a.rows) == m() && (tb ? b.cols : b.rows) == k() &&
                     (tb ? b.rows : b.cols) == n() && c.rows == m() && c.cols == n();
  const bool computes = operation.compute == CUBLAS_COMPUTE_32F ||
                        (operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
  const bool operands = of_codes() ? is_code(a.type) && is_code(b.type)
                                   : a.type == b.type && (a.type == d.type || d.type == CUDA_R_32F);
  const bool types = computes && operation.scale == CUDA_R_32F && c.type == d.type && operands;
  const bool with_aux = operation.activates() || operation.differentiates();
  const bool known =
      operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT || operation.biased() || with_aux;
  const bool aux = !with_aux || (operation.aux != nullptr && operation.aux_ld % 8 == 0 &&
                                 operation.aux_ld >= static_cast<std::int64_t>(d.rows));
  return sizes && types && known && aux && (!operation.biased() || operation.bias != nullptr);
}

bool Problem::takes_codes(const std::uint32_t (&alignment)[4]) const {
  if (!of_codes()) return true;
  const bool in_rows = operation.transpose_a == CUBLAS_OP_T && operation.transpose_b == CUBLAS_OP_N;
  const auto whole = [](std::int64_t size) { return size % 16 == 0; };
  const std::int64_t d_bytes = is_half_width(d.type) ? 2 : 4;
  const bool sizes = whole(static_cast<std::int64_t>(k())) && whole(a.ld) && whole(b.ld) &&
                     whole(d_bytes * d.ld) && whole(d_bytes * static_cast<std::int64_t>(m()));
  const bool aligned = std::ranges::all_of(alignment, [](std::uint32_t a) { return a >= 16; });
  const bool epilogue = operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                        (operation.epilogue == CUBLASLT_EPILOGUE_BIAS && is_half_width(d.type));
  const bool both_e5m2 = a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2;
  return in_rows && sizes && aligned && epilogue && !both_e5m2;
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
  mix(static_cast<std::uint64_t>(operation.aux_ld));
  mix(static_cast<std::uint64_t>(operation.compute));
  mix(static_cast<std::uint64_t>(operation.fast_sums));
  return hash;
}

namespace {

float read(const void* data, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16F) return llmtrain::to_float(static_cast<const llmtrain::f16*>(data)[i]);
  if (is_code(type)) {
    const auto& format =
        type == CUDA_R_8F_E4M3 ? llmtrain::kernels::kE4M3 : llmtrain::kernels::kE5M2;
    return llmtrain::kernels::decode(format, static_cast<const std::uint8_t*>(data)[i]);
  }
  return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
}

/// An operand as the product takes it: TF32 keeps 10 bits of the mantissa, rounded to nearest.
float operand(const void* data, cudaDataType_t type, std::size_t i, bool tf32) {
  const float value = read(data, type, i);
  if (!tf32 || value != value) return value;
  const std::uint32_t u = __float_as_uint(value);
  return __uint_as_float((u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu);
}

void write(void* data, cudaDataType_t type, std::size_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
    return;
  }
  if (type == CUDA_R_16F) {
    static_cast<llmtrain::f16*>(data)[i] = llmtrain::to_f16(value);
    return;
  }
  const std::uint32_t u = __float_as_uint(value);
  const std::uint32_t rounded = value != value ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u);
  static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(rounded >> 16);
}

/// Element (row, col) of op(matrix) lies here.
std::size_t place(const Layout& layout, bool transposed, std::uint64_t row, std::uint64_t col) {
  if (transposed) std::swap(row, col);
  return col * static_cast<std::uint64_t>(layout.ld) + row;
}

struct Gelu {
  float value, slope;
};

/// The tanh form.
Gelu gelu(float x) {
  const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
  const float du = 0.79788456080286535588f * (1 + 3 * 0.044715f * x * x);
  const float t = std::tanh(u);
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * du};
}

/// Element (i, j) of D from what was summed.
float with_epilogue(const Problem& problem, float z, std::uint64_t i, std::uint64_t j) {
  const Operation& operation = problem.operation;
  const std::size_t at = j * static_cast<std::uint64_t>(operation.aux_ld) + i;
  if (operation.biased()) z += read(operation.bias, problem.d.type, i);
  if (operation.differentiates()) return z * gelu(read(operation.aux, problem.d.type, at)).slope;
  if (!operation.activates()) return z;
  write(operation.aux, problem.d.type, at, z);
  return gelu(z).value;
}

}  // namespace

std::uint64_t hash_of(const Layout& layout, const void* data) {
  std::uint64_t hash = 14695981039346656037u;
  for (std::uint64_t col = 0; col < layout.cols; ++col) {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      const float value = read(data, layout.type, place(layout, false, row, col));
      hash = (hash ^ __float_as_uint(value)) * 1099511628211u;
    }
  }
  return hash;
}

void multiply(const Problem& problem, const Pointers& p, std::uint64_t parts) {
  const bool ta = problem.operation.transpose_a == CUBLAS_OP_T;
  const bool tb = problem.operation.transpose_b == CUBLAS_OP_T;
  const bool tf32 = problem.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::uint64_t k = problem.k(), depth = (k + parts - 1) / parts;
  for (std::uint64_t j = 0; j < problem.n(); ++j) {
    for (std::uint64_t i = 0; i < problem.m(); ++i) {
      float total = 0;
      for (std::uint64_t first = 0; first < k; first += depth) {
        float sum = 0;
        for (std::uint64_t l = first; l < std::min(k, first + depth); ++l) {
          sum += operand(p.a, problem.a.type, place(problem.a, ta, i, l), tf32) *
                 operand(p.b, problem.b.type, place(problem.b, tb, l, j), tf32);
        }
        total += sum;
      }
      total *= p.alpha;
      if (problem.of_codes()) total *= *problem.operation.a_scale * *problem.operation.b_scale;
      if (p.beta != 0) total += p.beta * read(p.c, problem.c.type, place(problem.c, false, i, j));
      total = with_epilogue(problem, total, i, j);
      write(p.d, problem.d.type, place(problem.d, false, i, j), total);
    }
  }
}

}  // namespace fake_lt
