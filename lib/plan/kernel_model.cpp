#include "lib/plan/kernel_model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/code_matmul.hpp"
#include "kernels/experts.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::string_view kTf32Product = "matmul_tf32";

bool is_attention(std::string_view name) {
  return name == "attention_forward" || name == "attention_backward";
}

// Kernels whose third size says whether an optional operand is there.
bool has_option(std::string_view name) {
  return name == "activation_forward" || name == "activation_backward" || name == "cross_entropy" ||
         name == "norm_forward" || name == "norm_backward";
}

bool is_ascending(const KernelModel::Axis& axis) {
  return !axis.empty() && axis.front() > 0 && std::isfinite(axis.back()) &&
         std::adjacent_find(axis.begin(), axis.end(), std::greater_equal<>()) == axis.end();
}

}  // namespace

std::string_view timed_name(const kernels::LaunchRecord& launch) {
  const bool multiplies =
      launch.name == kernels::Matmul::name || launch.name == kernels::GroupedMatmul::name;
  if (!multiplies) return launch.name;
  return launch.tf32 && launch.dtype == DType::f32 ? kTf32Product : kernels::Matmul::name;
}

bool is_product(std::string_view timed_name) {
  return timed_name == kernels::Matmul::name || timed_name == kTf32Product ||
         timed_name == kernels::CodeMatmul::name;
}

KernelKey key_of(std::string_view name, DType dtype, const std::array<std::int64_t, 4>& sizes) {
  const std::int64_t variant = is_product(name) ? sizes[3] : has_option(name) ? sizes[2] : 0;
  return {std::string(name), dtype, variant};
}

std::string to_string(const KernelKey& key) {
  return fmt::format("{} {} variant {}", key.name, llmtrain::to_string(key.dtype), key.variant);
}

std::size_t num_axes(std::string_view name) {
  return is_product(name) || is_attention(name) ? 3 : 1;
}

KernelPoint point_of(std::string_view name, const std::array<std::int64_t, 4>& sizes,
                     const kernels::Cost& cost) {
  const auto size = [&](std::size_t i) { return static_cast<double>(sizes[i]); };
  if (is_product(name)) return {{size(0), size(1), size(2)}, cost.flops};
  if (is_attention(name)) return {{size(0) * size(2), size(1), size(3)}, cost.flops};
  const double bytes = cost.bytes_read + cost.bytes_written;
  return {{bytes}, bytes};
}

KernelModel::KernelModel(std::vector<Axis> axes, std::vector<double> work,
                         std::vector<double> seconds)
    : axes_(std::move(axes)), work_(std::move(work)), seconds_(std::move(seconds)) {
  check();
  fill_missing();
}

void KernelModel::check() const {
  std::size_t points = 1;
  for (const Axis& axis : axes_) {
    require<DataError>(is_ascending(axis), "an axis must be positive and ascending");
    points *= axis.size();
  }
  require<DataError>(!axes_.empty() && work_.size() == points && seconds_.size() == points,
                     "a grid of {} points has {} values of work and {} times", points, work_.size(),
                     seconds_.size());
  for (std::size_t i = 0; i < points; ++i) {
    require<DataError>(std::isfinite(work_[i]) && work_[i] > 0, "work {} is {}, not positive", i,
                       work_[i]);
    require<DataError>(std::isfinite(seconds_[i]) && seconds_[i] >= 0,
                       "time {} is {}, not positive", i, seconds_[i]);
  }
  require<DataError>(seconds_[0] > 0, "the smallest point of a grid was not measured");
}

void KernelModel::fill_missing() {
  const std::size_t points = work_.size();
  log_rate_.resize(points);
  shortest_ = seconds_[0];
  for (std::size_t i = 0; i < points; ++i) {
    if (seconds_[i] > 0) {
      log_rate_[i] = std::log(seconds_[i] / work_[i]);
      shortest_ = std::min(shortest_, seconds_[i]);
      continue;
    }
    // Rate constant along the axis on which this point lies farthest out; lower points are filled.
    std::size_t lower = 0;
    double longest = 0;
    std::size_t stride = points;
    for (const Axis& axis : axes_) {
      stride /= axis.size();
      const std::size_t at = i / stride % axis.size();
      if (at > 0 && axis[at] > longest) {
        longest = axis[at];
        lower = i - stride;
      }
    }
    log_rate_[i] = log_rate_[lower];
  }
}

// Multilinear in logarithms, positions clamped to the grid.
double KernelModel::per_work_at(const std::vector<double>& position) const {
  std::vector<double> values = log_rate_;
  for (std::size_t a = axes_.size(); a-- > 0;) {
    const Axis& axis = axes_[a];
    const double x = std::clamp(position[a], axis.front(), axis.back());
    const std::size_t count = axis.size();
    std::size_t upper =
        static_cast<std::size_t>(std::lower_bound(axis.begin(), axis.end(), x) - axis.begin());
    if (upper == 0 && count > 1) upper = 1;
    const std::size_t lower = upper == 0 ? 0 : upper - 1;
    const double t = lower == upper ? 0
                                    : (std::log(x) - std::log(axis[lower])) /
                                          (std::log(axis[upper]) - std::log(axis[lower]));
    const std::size_t rows = values.size() / count;
    for (std::size_t r = 0; r < rows; ++r) {
      values[r] = (1 - t) * values[r * count + lower] + t * values[r * count + upper];
    }
    values.resize(rows);
  }
  return std::exp(values[0]);
}

double KernelModel::predict(const KernelPoint& point) const {
  require(point.position.size() == axes_.size(), "{} sizes for a grid of {} axes",
          point.position.size(), axes_.size());
  return std::max(shortest_, per_work_at(point.position) * point.work);
}

}  // namespace llmtrain::plan
