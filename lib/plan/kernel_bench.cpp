#include "lib/plan/kernel_bench.hpp"

#include <algorithm>

#include "kernels/optimizer.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

// As one fp32 and as two bf16 about 0.01: nothing overflows and nothing is denormal. As two fp16
// about 1, whose long sums overflow; that takes no longer.
constexpr std::uint32_t kPattern = 0x3c243c24;

void fill(const Tensor& slab) {
  auto* const words = slab.view().as<std::uint32_t>();
  std::fill(words, words + slab.view().bytes() / sizeof(std::uint32_t), kPattern);
}

}  // namespace

KernelBench::KernelBench(const kernels::KernelTable& table, int threads, std::uint64_t slab_bytes)
    : slab_bytes_(slab_bytes),
      device_(
          std::make_unique<Device>(make_cpu_memory(), 2 * slab_bytes + (std::uint64_t{1} << 32))),
      context_{.device = device_.get(), .table = &table, .threads = threads} {
  for (Slab* slab : {&inputs_, &results_}) {
    slab->memory = device_->allocate({static_cast<std::int64_t>(slab_bytes)}, DType::u8,
                                     Category::activations, "operands");
    fill(slab->memory);
  }
  decision_ = device_->allocate({kernels::UpdateDecision::kScalars}, DType::f64,
                                Category::activations, "decision");
  *decision_.view().as<kernels::UpdateDecision>() = {.apply = 1, .lr = 1e-3, .updates = 2};
}

void KernelBench::refill() { fill(results_.memory); }

View KernelBench::take(Slab& slab, std::int64_t rows, std::int64_t cols, DType dtype) {
  View view{.data = nullptr, .dtype = dtype, .shape = {rows, cols}, .row_stride = cols};
  const std::uint64_t bytes = (view.bytes() + 63) / 64 * 64;
  require(bytes <= slab_bytes_, "an operand of {} bytes for a slab of {}", bytes, slab_bytes_);
  if (slab.next + bytes > slab_bytes_) slab.next = 0;
  view.data = slab.memory.view().as<std::byte>() + slab.next;
  slab.next += bytes;
  return view;
}

View KernelBench::input(std::int64_t rows, std::int64_t cols, DType dtype) {
  return take(inputs_, rows, cols, dtype);
}

View KernelBench::result(std::int64_t rows, std::int64_t cols, DType dtype) {
  return take(results_, rows, cols, dtype);
}

View KernelBench::numbers(std::int64_t count, std::int64_t modulus, DType dtype,
                          std::int64_t factor) {
  for (const Numbers& n : numbers_) {
    if (n.count == count && n.modulus == modulus && n.factor == factor &&
        n.memory.dtype() == dtype) {
      return n.memory.view();
    }
  }
  require(dtype == DType::i32 || dtype == DType::i64, "whole numbers in {}", to_string(dtype));
  Tensor memory = device_->allocate({count}, dtype, Category::activations, "numbers");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = i * factor % modulus;
    if (dtype == DType::i64) {
      memory.view().as<std::int64_t>()[i] = value;
    } else {
      memory.view().as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
    }
  }
  numbers_.push_back({count, modulus, factor, memory});
  return memory.view();
}

}  // namespace llmtrain::plan
