#include "lib/plan/nominal_profile.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A launch behind another one in a stream.
constexpr double kLaunchSeconds = 2.5e-6;
/// Large products reach this share of the tensor cores' dense rate (power limits the clock), and
/// plain FP32 ones of the multiply-add rate.
constexpr double kProductShare = 0.75;
/// What one pass over memory reaches of the bandwidth: 3.6 of 4.8 TB/s.
constexpr double kMemoryShare = 0.78;
/// What long transfers reach of a link's rate, and what a round of messages takes at least.
constexpr double kLinkShare = 0.8;
constexpr double kNodeSeconds = 4e-6, kFabricSeconds = 12e-6;
constexpr int kGpusOfNode = 8;
/// Rows and columns of c that a block makes.
constexpr double kTileRows = 128, kTileCols = 256;

double peak_of(const GpuSheet& gpu, DType dtype) {
  switch (dtype) {
    case DType::bf16:
    case DType::f16:
      return gpu.bf16_flops;
    case DType::f64:
      return gpu.fp64_flops;
    default:
      return gpu.fp32_flops;
  }
}

/// Terms of a sum that are worth a block of their own.
constexpr double kSplitDepth = 2048;

/// Blocks run in waves of one per multiprocessor; the last wave is rarely full, and a small product
/// is not even one, unless its sums are long enough to be split.
double wave_share(const GpuSheet& gpu, double m, double n, double k) {
  const double tiles = std::ceil(m / kTileRows) * std::ceil(n / kTileCols);
  const double room = std::floor(gpu.multiprocessors / tiles);
  const double splits = std::max(1.0, std::min(room, std::floor(k / kSplitDepth)));
  const double used = splits * (m / kTileRows) * (n / kTileCols);
  return used / (std::ceil(splits * tiles / gpu.multiprocessors) * gpu.multiprocessors);
}

/// What products are made of, and the rate at which they are multiplied.
struct ProductRate {
  double element_bytes, peak_flops;
};

double product_seconds(const GpuSheet& gpu, const ProductRate& rate, double m, double n, double k) {
  const double flops = 2 * m * n * k;
  const double bytes = (m * k + k * n + m * n) * rate.element_bytes / kMemoryShare;
  const double share = kProductShare * std::min(1.0, wave_share(gpu, m, n, k));
  return kLaunchSeconds + std::max(flops / (share * rate.peak_flops), bytes / gpu.bytes_per_second);
}

/// Of causal attention by tiles: the shares of the dense bf16 rate that the best kernels reach.
double attention_share(bool backward, double head_dim) {
  const double of_128 = backward ? 0.52 : 0.62;
  return of_128 * std::clamp(head_dim / 128, 0.25, 1.0);
}

KernelModel product_model(const GpuSheet& gpu, const ProductRate& rate) {
  const KernelModel::Axis axis = {64, 256, 1024, 4096, 16384, 65536};
  std::vector<double> work, seconds;
  for (const double m : axis) {
    for (const double n : axis) {
      for (const double k : axis) {
        work.push_back(2 * m * n * k);
        seconds.push_back(product_seconds(gpu, rate, m, n, k));
      }
    }
  }
  return {{axis, axis, axis}, work, seconds};
}

/// `work` of the grid is the causal count: two (backward: five) products of T x T / 2 x D.
KernelModel attention_model(const GpuSheet& gpu, DType dtype, bool backward) {
  const KernelModel::Axis heads = {1, 16, 128, 1024, 8192}, rows = {128, 512, 2048, 8192, 32768},
                          width = {32, 64, 128, 256};
  std::vector<double> work, seconds;
  for (const double h : heads) {
    for (const double t : rows) {
      for (const double d : width) {
        const double flops = (backward ? 5 : 2) * h * t * t * d;
        const double blocks = h * std::ceil(t / kTileRows);
        const double filled = std::min(1.0, blocks / gpu.multiprocessors);
        work.push_back(flops);
        seconds.push_back(kLaunchSeconds +
                          flops / (attention_share(backward, d) * filled * peak_of(gpu, dtype)));
      }
    }
  }
  return {{heads, rows, width}, work, seconds};
}

KernelModel memory_model(const GpuSheet& gpu) {
  const KernelModel::Axis bytes = {1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10};
  std::vector<double> seconds;
  for (const double b : bytes) {
    seconds.push_back(kLaunchSeconds + b / (kMemoryShare * gpu.bytes_per_second));
  }
  return {{bytes}, bytes, seconds};
}

}  // namespace

const std::vector<GpuSheet>& gpu_sheets() {
  static const std::vector<GpuSheet> sheets = {
      {"a100", "A100 SXM 80 GB", 312e12, 156e12, 19.5e12, 19.5e12, 2.039e12, 81920 * kMiB, 108,
       40 * kMiB, 300e9, 25e9},
      {"h100", "H100 SXM 80 GB", 989.4e12, 494.7e12, 66.9e12, 66.9e12, 3.35e12, 81559 * kMiB, 132,
       50 * kMiB, 450e9, 50e9},
      {"h800", "H800 SXM 80 GB", 989.4e12, 494.7e12, 66.9e12, 1e12, 3.35e12, 81559 * kMiB, 132,
       50 * kMiB, 200e9, 50e9},
      {"h200", "H200 SXM 141 GB", 989.4e12, 494.7e12, 66.9e12, 66.9e12, 4.8e12, 143771 * kMiB, 132,
       50 * kMiB, 450e9, 50e9},
      {"b200", "B200 SXM 180 GB", 2250e12, 1125e12, 75e12, 37e12, 7.7e12, 183359 * kMiB, 148,
       126 * kMiB, 900e9, 50e9},
  };
  return sheets;
}

const GpuSheet* sheet_of(std::string_view driver_name, std::uint64_t memory_bytes) {
  // Cards of one model with as much memory have other rates.
  if (driver_name.find("PCIe") != std::string_view::npos) return nullptr;
  for (const GpuSheet& sheet : gpu_sheets()) {
    const std::string_view model = sheet.title.substr(0, sheet.title.find(' '));
    const double share =
        static_cast<double>(memory_bytes) / static_cast<double>(sheet.memory_bytes);
    // Names of one model with other memory, like PCIe cards, have other rates.
    if (driver_name.find(model) != std::string_view::npos && share > 0.95 && share < 1.05) {
      return &sheet;
    }
  }
  return nullptr;
}

std::optional<HardwareProfile> nominal_profile(std::string_view gpu) {
  const auto& sheets = gpu_sheets();
  const auto sheet = std::find_if(sheets.begin(), sheets.end(),
                                  [&](const GpuSheet& candidate) { return candidate.name == gpu; });
  if (sheet == sheets.end()) return std::nullopt;
  HardwareProfile profile;
  profile.device = DeviceKind::cuda;
  profile.machine.host = fmt::format("{}, from its data sheet, not measured", sheet->title);
  profile.machine.memory_bytes = sheet->memory_bytes;
  profile.machine.cache_bytes = sheet->cache_bytes;
  profile.machine.cores = sheet->multiprocessors;
  profile.peak_fp32_flops = sheet->fp32_flops;
  profile.peak_bf16_flops = sheet->bf16_flops;
  profile.peak_tf32_flops = sheet->tf32_flops;
  profile.memory_bytes_per_second = sheet->bytes_per_second;
  profile.launch_seconds = kLaunchSeconds;
  profile.network =
      Network{.ranks_per_node = kGpusOfNode,
              .node = {kNodeSeconds, kLinkShare * sheet->node_bytes_per_second},
              .fabric = {kFabricSeconds, kLinkShare * sheet->fabric_bytes_per_second}};
  constexpr std::array kMemoryKernels = {"activation_backward",
                                         "activation_forward",
                                         "adam_update",
                                         "add",
                                         "attention_merge",
                                         "balance_router",
                                         "clip_by_value",
                                         "column_sum",
                                         "combine_rows",
                                         "count_choices",
                                         "cross_entropy",
                                         "decide_update",
                                         "dropout",
                                         "embedding_backward",
                                         "embedding_forward",
                                         "fill",
                                         "gather_rows",
                                         "group_by_expert",
                                         "join_squared_norms",
                                         "limit_choices",
                                         "logit_statistics",
                                         "norm_forward",
                                         "norm_input_grad",
                                         "norm_weight_grad",
                                         "normalize",
                                         "rope",
                                         "route_tokens",
                                         "route_tokens_backward",
                                         "scale_cast",
                                         "scale_rows",
                                         "scale_rows_backward",
                                         "scale_update",
                                         "sgd_update",
                                         "squared_norm",
                                         "step_update",
                                         "sum"};
  constexpr std::int64_t kVariants = 3;
  for (std::int64_t variant = 0; variant < kVariants; ++variant) {
    profile.kernels.emplace(KernelKey{"matmul_tf32", DType::f32, variant},
                            product_model(*sheet, {sizeof(float), sheet->tf32_flops}));
  }
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (std::int64_t variant = 0; variant < kVariants; ++variant) {
      for (const char* name : kMemoryKernels) {
        profile.kernels.emplace(KernelKey{name, dtype, variant}, memory_model(*sheet));
      }
      const ProductRate rate{static_cast<double>(size_of(dtype)), peak_of(*sheet, dtype)};
      profile.kernels.emplace(KernelKey{"matmul", dtype, variant}, product_model(*sheet, rate));
    }
    profile.kernels.emplace(KernelKey{"attention_forward", dtype, 0},
                            attention_model(*sheet, dtype, false));
    profile.kernels.emplace(KernelKey{"attention_backward", dtype, 0},
                            attention_model(*sheet, dtype, true));
  }
  return profile;
}

}  // namespace llmtrain::plan
