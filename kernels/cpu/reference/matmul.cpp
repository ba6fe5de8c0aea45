#include <vector>

#include "kernels/code_matmul.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

/// sums[j] = sum over p, in ascending order, of op(a)[i, p] * op(b)[p, j].
template <class T>
void multiply_row(const Matmul& mm, std::int64_t i, std::vector<Wide<T>>& sums) {
  const auto a = [&](std::int64_t p) {
    return widen(mm.transpose_a ? mm.a.row<T>(p)[i] : mm.a.row<T>(i)[p]);
  };
  std::fill(sums.begin(), sums.end(), Wide<T>{0});
  if (mm.transpose_b) {
    for (std::int64_t j = 0; j < mm.n(); ++j) {
      const T* b = mm.b.row<T>(j);
      for (std::int64_t p = 0; p < mm.k(); ++p) sums[j] += a(p) * widen(b[p]);
    }
  } else {
    for (std::int64_t p = 0; p < mm.k(); ++p) {
      const T* b = mm.b.row<T>(p);
      const Wide<T> a_p = a(p);
      for (std::int64_t j = 0; j < mm.n(); ++j) sums[j] += a_p * widen(b[j]);
    }
  }
}

template <class T, class C>
void multiply(const Matmul& mm) {
  std::vector<Wide<T>> sums(static_cast<std::size_t>(mm.n()));
  for (std::int64_t i = 0; i < mm.m(); ++i) {
    multiply_row<T>(mm, i, sums);
    C* c = mm.c.row<C>(i);
    for (std::int64_t j = 0; j < mm.n(); ++j) {
      if (mm.bias.defined()) {
        sums[j] += mm.bias.dtype == DType::f32 ? static_cast<Wide<T>>(mm.bias.as<float>()[j])
                                               : widen(mm.bias.as<C>()[j]);
      }
      c[j] = narrow<C>(mm.accumulate ? widen(c[j]) + sums[j] : sums[j]);
    }
  }
}

void matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace) {
  if (mm.epilogue != ProductEpilogue::none) {
    matmul(ctx, without_epilogue(mm), workspace);
    return run_epilogue(ctx, mm);
  }
  with_type(mm.a.dtype, [&]<class T>() {
    if (mm.c.dtype == mm.a.dtype) {
      multiply<T, T>(mm);
    } else {
      multiply<T, float>(mm);
    }
  });
}

/// Each sum in ascending order; the scales' product is one rounding.
template <class C>
void multiply_codes(const CodeMatmul& mm) {
  const std::array<float, 256> a_values = decode_table(mm.a_format);
  const std::array<float, 256> b_values = decode_table(mm.b_format);
  const float scale = *mm.a_scale_inv.as<float>() * *mm.b_scale_inv.as<float>();
  for (std::int64_t i = 0; i < mm.m(); ++i) {
    const std::uint8_t* const a = mm.a.row<std::uint8_t>(i);
    C* const c = mm.c.row<C>(i);
    for (std::int64_t j = 0; j < mm.n(); ++j) {
      const std::uint8_t* const b = mm.b.row<std::uint8_t>(j);
      float sum = 0;
      for (std::int64_t p = 0; p < mm.k(); ++p) sum += a_values[a[p]] * b_values[b[p]];
      float result = sum * scale;
      if (mm.bias.defined()) {
        result += mm.bias.dtype == DType::f32 ? mm.bias.as<float>()[j]
                                              : static_cast<float>(widen(mm.bias.as<C>()[j]));
      }
      c[j] = narrow<C>(mm.accumulate ? widen(c[j]) + result : result);
    }
  }
}

void code_matmul(const KernelCtx&, const CodeMatmul& mm, const View&) {
  mm.c.dtype == DType::bf16 ? multiply_codes<bf16>(mm) : multiply_codes<float>(mm);
}

template <class T>
void sum_columns(const ColumnSum& cs) {
  const std::int64_t rows = cs.x.rows();
  Wide<T>* out = cs.out.as<Wide<T>>();
  for (std::int64_t j = 0; j < cs.x.cols(); ++j) {
    for (std::int64_t begin = 0; begin < rows; begin += kRowsPerBlock) {
      Wide<T> block = 0;
      const std::int64_t end = std::min(rows, begin + kRowsPerBlock);
      for (std::int64_t i = begin; i < end; ++i) block += widen(cs.x.row<T>(i)[j]);
      out[j] += block;
    }
  }
}

void column_sum(const KernelCtx&, const ColumnSum& cs, const View&) {
  with_type(cs.x.dtype, [&]<class T>() { sum_columns<T>(cs); });
}

}  // namespace

void add_matmul_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Matmul, matmul>());
  rows.push_back(row_of<CodeMatmul, code_matmul>());
  rows.push_back(row_of<ColumnSum, column_sum>());
}

}  // namespace llmtrain::kernels::reference
