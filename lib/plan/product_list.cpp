#include "lib/plan/product_list.hpp"

#include "kernels/cuda/rules/product_scratch.hpp"

namespace llmtrain::plan {

ProductList::Key ProductList::key_of(const kernels::Product& product) {
  const kernels::Matmul& mm = product.mm;
  const std::optional<kernels::CodeMatmul>& codes = product.codes;
  const auto alignment = [](const View& view) {
    return std::int64_t{kernels::cuda::alignment_of(view.data)};
  };
  const auto type = [](const View& view) { return static_cast<std::int64_t>(view.dtype); };
  const bool biased = mm.bias.defined();
  return {mm.m(),
          mm.n(),
          mm.k(),
          mm.a.row_stride,
          mm.b.row_stride,
          mm.c.row_stride,
          type(mm.a),
          type(mm.c),
          alignment(mm.a),
          alignment(mm.b),
          alignment(mm.c),
          mm.transpose_a,
          mm.transpose_b,
          mm.accumulate,
          biased ? 1 + type(mm.bias) : 0,
          biased ? alignment(mm.bias) : 0,
          static_cast<std::int64_t>(mm.epilogue),
          mm.pre.defined() ? mm.pre.row_stride : 0,
          mm.pre.defined() ? alignment(mm.pre) : 0,
          codes ? codes->a_format.mantissa_bits : 0,
          codes ? codes->b_format.mantissa_bits : 0,
          codes && codes->fast_sums};
}

void ProductList::add(const kernels::Product& product) {
  if (known_.insert(key_of(product)).second) products_.push_back(product);
}

}  // namespace llmtrain::plan
