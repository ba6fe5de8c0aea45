#include "kernels/cuda/rules/product_scratch.hpp"

#include <doctest/doctest.h>

namespace llmtrain::kernels::cuda {

namespace {

View matrix(std::uintptr_t address, DType dtype, std::int64_t rows, std::int64_t cols,
            std::int64_t stride) {
  return {reinterpret_cast<void*>(address), dtype, {rows, cols}, stride};
}

}  // namespace

TEST_CASE("alignments are powers of two up to 256") {
  for (const auto& [address, expected] :
       {std::pair{1, 1}, {6, 2}, {8, 8}, {48, 16}, {256, 256}, {4096, 256}, {4096 + 128, 128}}) {
    CHECK(alignment_of(reinterpret_cast<void*>(std::uintptr_t(address))) ==
          static_cast<std::uint32_t>(expected));
  }
}

TEST_CASE("operands lie one after another with their alignments, gaps between rows included") {
  const Matmul mm{.a = matrix(512 + 8, DType::bf16, 10, 20, 100),
                  .b = matrix(1024, DType::bf16, 20, 30, 30),
                  .c = matrix(2048 + 64, DType::f32, 10, 30, 30),
                  .bias = {}};
  const ProductScratch at(mm, 1000);
  CHECK(at.workspace == 0);
  CHECK(at.a == 1024 + 8);
  CHECK(at.b >= at.a + 2 * (9 * 100 + 20));
  CHECK(at.b % 256 == 0);
  CHECK(at.c >= at.b + 2 * 20 * 30);
  CHECK(at.c % 128 == 64);
  CHECK(at.total_bytes >= at.c + 4 * 10 * 30);
  Matmul biased = mm;
  biased.bias = {reinterpret_cast<void*>(std::uintptr_t{4}), DType::f32, {30}, 30};
  CHECK(ProductScratch(biased, 1000).bias % 256 == 0);
  CHECK(ProductScratch(biased, 1000).total_bytes >= at.total_bytes + 4 * 30);
}

TEST_CASE("scratch is enough for the largest product, and fp64 needs none") {
  const auto square = [](DType dtype, std::int64_t n) {
    const View view = matrix(256, dtype, n, n, n);
    return Matmul{.a = view, .b = view, .c = view, .bias = {}};
  };
  const std::vector<Product> products = {square(DType::f32, 16), square(DType::f32, 32),
                                         square(DType::f64, 64)};
  CHECK(tuning_scratch_bytes(products, 256) == 256 + 3 * 4 * 32 * 32);
  CHECK(tuning_scratch_bytes({}, 256) == 0);
  CHECK(tuning_scratch_bytes(std::span(products).last(1), 256) == 0);
}

}  // namespace llmtrain::kernels::cuda
