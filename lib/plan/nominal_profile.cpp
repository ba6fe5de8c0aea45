#include "lib/plan/nominal_profile.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

/// Rows and columns of c that a block makes.
constexpr double kTileRows = 128, kTileCols = 256;

double peak_of(const HardwareSheet& sheet, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return sheet.bf16_flops;
    case DType::f16:  // a CPU multiplies it in fp32
      return sheet.device == DeviceKind::cpu ? sheet.fp32_flops : sheet.bf16_flops;
    case DType::f64:
      return sheet.fp64_flops;
    default:
      return sheet.fp32_flops;
  }
}

/// Terms of a sum that are worth a block of their own.
constexpr double kSplitDepth = 2048;

/// Blocks run in waves of one per multiprocessor; the last wave is rarely full, and a small product
/// is not even one, unless its sums are long enough to be split. A CPU's threads cut finer.
double wave_share(const HardwareSheet& sheet, double m, double n, double k) {
  if (sheet.device == DeviceKind::cpu) return 1;
  const double tiles = std::ceil(m / kTileRows) * std::ceil(n / kTileCols);
  const double room = std::floor(sheet.multiprocessors / tiles);
  const double splits = std::max(1.0, std::min(room, std::floor(k / kSplitDepth)));
  const double used = splits * (m / kTileRows) * (n / kTileCols);
  return used / (std::ceil(splits * tiles / sheet.multiprocessors) * sheet.multiprocessors);
}

/// What products are made of, and the rate at which they are multiplied.
struct ProductRate {
  double element_bytes, peak_flops;
};

double product_seconds(const HardwareSheet& sheet, const ProductRate& rate, double m, double n,
                       double k) {
  const double flops = 2 * m * n * k;
  const double bytes = (m * k + k * n + m * n) * rate.element_bytes / sheet.achieved.memory;
  const double share = sheet.achieved.products * std::min(1.0, wave_share(sheet, m, n, k));
  return sheet.launch_seconds +
         std::max(flops / (share * rate.peak_flops), bytes / sheet.bytes_per_second);
}

/// Of causal attention by tiles: a smaller head has less to do with what it loads.
double attention_share(const HardwareSheet& sheet, bool backward, double head_dim) {
  const double of_128 =
      backward ? sheet.achieved.attention_backward : sheet.achieved.attention_forward;
  return of_128 * std::clamp(head_dim / 128, 0.25, 1.0);
}

KernelModel product_model(const HardwareSheet& sheet, const ProductRate& rate) {
  const KernelModel::Axis axis = {64, 256, 1024, 4096, 16384, 65536};
  std::vector<double> work, seconds;
  for (const double m : axis) {
    for (const double n : axis) {
      for (const double k : axis) {
        work.push_back(2 * m * n * k);
        seconds.push_back(product_seconds(sheet, rate, m, n, k));
      }
    }
  }
  return {{axis, axis, axis}, work, seconds};
}

/// `work` of the grid is the causal count: two (backward: five) products of T x T / 2 x D.
KernelModel attention_model(const HardwareSheet& sheet, DType dtype, bool backward) {
  const KernelModel::Axis heads = {1, 16, 128, 1024, 8192}, rows = {128, 512, 2048, 8192, 32768},
                          width = {32, 64, 128, 256};
  std::vector<double> work, seconds;
  for (const double h : heads) {
    for (const double t : rows) {
      for (const double d : width) {
        const double flops = (backward ? 5 : 2) * h * t * t * d;
        const double blocks = h * std::ceil(t / kTileRows);
        const double filled =
            sheet.device == DeviceKind::cpu ? 1.0 : std::min(1.0, blocks / sheet.multiprocessors);
        work.push_back(flops);
        seconds.push_back(sheet.launch_seconds + flops / (attention_share(sheet, backward, d) *
                                                          filled * peak_of(sheet, dtype)));
      }
    }
  }
  return {{heads, rows, width}, work, seconds};
}

KernelModel memory_model(const HardwareSheet& sheet) {
  const KernelModel::Axis bytes = {1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10};
  std::vector<double> seconds;
  for (const double b : bytes) {
    seconds.push_back(sheet.launch_seconds + b / (sheet.achieved.memory * sheet.bytes_per_second));
  }
  return {{bytes}, bytes, seconds};
}

constexpr std::int64_t kVariants = 3;
constexpr std::array kDtypes = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr std::array kMemoryKernels = {"activation_backward",
                                       "activation_forward",
                                       "adam_update",
                                       "add",
                                       "affine_dequantize",
                                       "affine_quantize",
                                       "assign_slots",
                                       "attention_merge",
                                       "balance_router",
                                       "block_adam_update",
                                       "block_amax",
                                       "block_moments",
                                       "block_squares",
                                       "came_moment",
                                       "carried_step",
                                       "census",
                                       "clip_by_value",
                                       "column_squares",
                                       "column_sum",
                                       "combine_rows",
                                       "count_choices",
                                       "cover_maxima",
                                       "cover_scale",
                                       "cross_entropy",
                                       "decide_update",
                                       "dequantize",
                                       "dropout",
                                       "eight_bit_update",
                                       "embedding_backward",
                                       "embedding_forward",
                                       "factored_scale",
                                       "fill",
                                       "follow_subspace",
                                       "gather_rows",
                                       "gradient_noise",
                                       "group_by_expert",
                                       "head_norm_rope",
                                       "head_norm_rope_backward",
                                       "join_squared_norms",
                                       "limit_choices",
                                       "logit_statistics",
                                       "master_squares",
                                       "matrix_step_update",
                                       "norm_backward",
                                       "norm_forward",
                                       "normalize",
                                       "orthonormalize",
                                       "quantize",
                                       "roll_amax_history",
                                       "rope",
                                       "route_tokens",
                                       "route_tokens_backward",
                                       "row_totals",
                                       "rule_update",
                                       "scale_cast",
                                       "scale_from_amax",
                                       "scale_rows",
                                       "scale_rows_backward",
                                       "scale_update",
                                       "square_elements",
                                       "squared_norm",
                                       "step_update",
                                       "subspace_decisions",
                                       "subspace_step",
                                       "sum",
                                       "take_rows",
                                       "top_singular_vectors",
                                       "unbiased_moments"};

using Kernels = std::map<KernelKey, KernelModel>;

void add_products(const HardwareSheet& sheet, Kernels& to) {
  for (std::int64_t variant = 0; variant < kVariants; ++variant) {
    for (const DType dtype : kDtypes) {
      const ProductRate rate{static_cast<double>(size_of(dtype)), peak_of(sheet, dtype)};
      to.emplace(KernelKey{"matmul", dtype, variant}, product_model(sheet, rate));
    }
    if (sheet.device == DeviceKind::cpu) continue;
    to.emplace(KernelKey{"matmul_tf32", DType::f32, variant},
               product_model(sheet, {sizeof(float), sheet.tf32_flops}));
    if (sheet.fp8_flops == 0) continue;
    to.emplace(KernelKey{"code_matmul", DType::u8, variant},
               product_model(sheet, {sizeof(std::uint8_t), sheet.fp8_flops}));
  }
}

void add_passes_over_memory(const HardwareSheet& sheet, Kernels& to) {
  for (const DType dtype : kDtypes) {
    for (std::int64_t variant = 0; variant < kVariants; ++variant) {
      for (const char* name : kMemoryKernels) {
        to.emplace(KernelKey{name, dtype, variant}, memory_model(sheet));
      }
    }
  }
}

std::string assumptions_of(const HardwareSheet& sheet) {
  const AchievedShares& reached = sheet.achieved;
  std::string text = fmt::format(
      "products reach {:.0f} %, attention {:.0f} and {:.0f} %, memory {:.0f} %; a launch takes "
      "{:g} us",
      100 * reached.products, 100 * reached.attention_forward, 100 * reached.attention_backward,
      100 * reached.memory, 1e6 * sheet.launch_seconds);
  const auto gigabytes = [](const Link& link) { return link.bytes_per_second / 1e9; };
  if (sheet.network.ranks_per_node > 1) {
    const Network& network = sheet.network;
    text += fmt::format(
        ";\n    machines of {} ranks; long transfers go at {:.0f} GB/s in a machine, {:.0f} "
        "between "
        "them, {:g} and {:g} us before the first byte",
        network.ranks_per_node, gigabytes(network.node), gigabytes(network.fabric),
        1e6 * network.node.seconds, 1e6 * network.fabric.seconds);
  }
  return text;
}

}  // namespace

HardwareProfile nominal_profile(const HardwareSheet& sheet) {
  HardwareProfile profile;
  profile.device = sheet.device;
  profile.machine.host =
      fmt::format("{}, from {}, not measured\n    assumed of it: {}", sheet.title,
                  sheet.file.empty() ? "its data sheet" : "the data sheet " + sheet.file,
                  assumptions_of(sheet));
  profile.machine.memory_bytes = sheet.memory_bytes;
  profile.machine.cache_bytes = sheet.cache_bytes;
  profile.machine.cores = sheet.device == DeviceKind::cpu ? sheet.threads : sheet.multiprocessors;
  profile.threads = sheet.threads;
  profile.peak_fp32_flops = sheet.fp32_flops;
  profile.peak_bf16_flops = sheet.bf16_flops;
  profile.peak_tf32_flops = sheet.tf32_flops;
  profile.peak_fp8_flops = sheet.fp8_flops;
  profile.memory_bytes_per_second = sheet.bytes_per_second;
  profile.launch_seconds = sheet.launch_seconds;
  profile.network = sheet.network;
  add_products(sheet, profile.kernels);
  add_passes_over_memory(sheet, profile.kernels);
  for (const DType dtype : kDtypes) {
    profile.kernels.emplace(KernelKey{"attention_forward", dtype, 0},
                            attention_model(sheet, dtype, false));
    profile.kernels.emplace(KernelKey{"attention_backward", dtype, 0},
                            attention_model(sheet, dtype, true));
  }
  return profile;
}

std::optional<HardwareProfile> nominal_profile(std::string_view name) {
  const auto& sheets = hardware_sheets();
  const auto sheet = std::find_if(sheets.begin(), sheets.end(),
                                  [&](const HardwareSheet& one) { return one.name == name; });
  if (sheet == sheets.end()) return std::nullopt;
  return nominal_profile(*sheet);
}

}  // namespace llmtrain::plan
