#include "lib/plan/gpu_rates.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "kernels/matmul.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain::plan {

namespace {

constexpr int kRepeats = 10;
/// A launch that takes so long tells the rate: what it takes to begin no longer matters.
constexpr double kLongEnough = 1e-3;
constexpr std::uint64_t kWorkspaceBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kSlabBytes = std::uint64_t{3} << 29;

/// Of one launch, the mean of several; the first loads code and is not counted.
double seconds_of(const Device& device, const std::function<void()>& launch) {
  using Clock = std::chrono::steady_clock;
  launch();
  device.synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < kRepeats; ++i) launch();
  device.synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count() / kRepeats;
}

/// Numbers in [-0.5, 0.5): zeros would be multiplied faster, because fewer bits change.
void fill(Device& device, const Tensor& matrix) {
  constexpr std::size_t kNumbers = 1 << 16;
  static const std::vector<bf16> numbers = [] {
    std::vector<bf16> all;
    const PhiloxKey key = philox_key(0, "doctor", "operands");
    for (std::size_t i = 0; i < kNumbers; ++i) {
      all.push_back(to_bf16(static_cast<float>(unit_interval(philox_word(key, 0, i)) - 0.5)));
    }
    return all;
  }();
  const std::uint64_t bytes = matrix.view().bytes();
  std::vector<std::byte> host(bytes);
  const auto pattern = std::as_bytes(std::span(numbers));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = pattern[i % pattern.size()];
  device.copy_from_host(matrix, host);
}

void measure_product(Device& device, const kernels::KernelTable& table, GpuRates& rates) {
  const kernels::KernelCtx ctx{.device = &device,
                               .table = &table,
                               .stream = device.compute_stream(),
                               .library_workspace_bytes = kWorkspaceBytes};
  for (std::int64_t side = 128; side <= 8192; side *= 4) {
    Tensor matrices[3];
    for (Tensor& matrix : matrices) {
      matrix = device.allocate({side, side}, DType::bf16, Category::activations, "matrix");
      fill(device, matrix);
    }
    const auto& [a, b, c] = matrices;
    const kernels::Matmul product{.a = a, .b = b, .c = c, .transpose_b = true};
    const double seconds = seconds_of(device, [&] { kernels::launch(ctx, product); });
    rates.side = side;
    rates.bf16_flops = product.cost().flops / seconds;
    if (seconds >= kLongEnough) return;
  }
}

}  // namespace

CopyRate measure_copy(Device& device, std::uint64_t arena_bytes) {
  CopyRate rate;
  const std::uint64_t most = std::min(arena_bytes, kSlabBytes) / 3;
  for (std::uint64_t bytes = 128 << 10; bytes <= most; bytes *= 8) {
    const Shape shape{static_cast<std::int64_t>(bytes)};
    const Tensor from = device.allocate(shape, DType::u8, Category::activations, "from");
    const Tensor to = device.allocate(shape, DType::u8, Category::activations, "to");
    const double seconds = seconds_of(device, [&] { device.copy(from, to); });
    rate = {.copied_bytes = bytes, .bytes_per_second = 2 * static_cast<double>(bytes) / seconds};
    if (seconds >= kLongEnough) break;
  }
  return rate;
}

GpuRates measure_gpu(const kernels::Backend& backend, int number) {
  Device device(backend.open(number), kSlabBytes);
  GpuRates rates;
  rates.copy = measure_copy(device, kSlabBytes);
  measure_product(device, backend.kernels(), rates);
  return rates;
}

}  // namespace llmtrain::plan
