#pragma once
/// How long one kind of launch takes: seconds measured on a grid of sizes, and what lies between.

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::plan {

/// Launches that one table of times describes: kernel, element type of the first operand, and what
/// changes its work beside the sizes (Matmul: the form, by sizes[3]; kernels with an optional
/// operand: whether it is there).
struct KernelKey {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t variant = 0;
  auto operator<=>(const KernelKey&) const = default;
};
/// The kernel's name there: that of the launch, but "matmul" for products of experts, which run at
/// the rate of one of them, and "matmul_tf32" for products that round to TF32.
std::string_view timed_name(const kernels::LaunchRecord& launch);
/// Whether such a name is a matrix product's.
bool is_product(std::string_view timed_name);
KernelKey key_of(std::string_view name, DType dtype, const std::array<std::int64_t, 4>& sizes);
/// "matmul bf16 variant 2".
std::string to_string(const KernelKey& key);

/// Where a launch lies in its kernel's grid, and its work, in proportion to which times grow
/// outside of the grid.
struct KernelPoint {
  std::vector<double> position;
  double work = 0;
};
/// Products: (m, n, k) and (sequences x heads, query rows, head_dim), work in FLOP. All other
/// kernels: bytes moved, which are their work too.
KernelPoint point_of(std::string_view name, const std::array<std::int64_t, 4>& sizes,
                     const kernels::Cost& cost);
/// Number of axes of a kernel's grid.
std::size_t num_axes(std::string_view name);

/// Times on a full grid. Between grid points the logarithm of time is linear in the logarithm of
/// every size. Outside, the time per unit of work is that of the nearest point of the grid, but a
/// launch never takes less than the grid's shortest time.
class KernelModel {
 public:
  /// One axis of a grid: ascending, positive.
  using Axis = std::vector<double>;

  /// `work` and `seconds` hold one value per grid point, last axis fastest; seconds of 0 mark
  /// points that were not measured (too large): they get the time per work of the point one step
  /// lower along their longest reducible axis. DataError when sizes do not agree, a value is not
  /// finite and positive, or the first point was not measured.
  KernelModel(std::vector<Axis> axes, std::vector<double> work, std::vector<double> seconds);

  double predict(const KernelPoint& point) const;

  const std::vector<Axis>& axes() const { return axes_; }
  const std::vector<double>& work() const { return work_; }
  /// As measured: 0 where nothing was.
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  void check() const;
  void fill_missing();
  double per_work_at(const std::vector<double>& position) const;

  std::vector<Axis> axes_;
  std::vector<double> work_, seconds_;
  std::vector<double> log_rate_;  // of seconds per unit of work
  double shortest_ = 0;
};

}  // namespace llmtrain::plan
