#include "lib/plan/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/plan/fma_peak.hpp"
#include "lib/plan/fma_sampler.hpp"
#include "lib/plan/kernel_cases.hpp"
#include "lib/plan/machine.hpp"
#include "lib/plan/memory_probe.hpp"
#include "lib/plan/rated_samples.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::uint64_t kSlabBytes = std::uint64_t{256} << 20;

// How long and how finely to measure.
struct Effort {
  KernelModel::Axis matmul, heads, rows, head_dim;
  std::int64_t row_factor;   // between the points of a row kernel
  std::int64_t max_operand;  // bytes of a row kernel's largest operand
  double max_flops;          // of a measured product
  double seconds_per_point;  // per pass
  int passes;
};

Effort effort_of(bool quick) {
  if (quick) {
    return {.matmul = {64, 512, 4096},
            .heads = {4, 32},
            .rows = {64, 512},
            .head_dim = {32, 128},
            .row_factor = 16,
            .max_operand = 32 << 20,
            .max_flops = 2.5e9,
            .seconds_per_point = 2e-3,
            .passes = 2};
  }
  return {.matmul = {64, 256, 768, 3072, 12288, 49152},
          .heads = {4, 16, 64},
          .rows = {64, 256, 1024},
          .head_dim = {32, 64, 128},
          .row_factor = 4,
          .max_operand = 64 << 20,
          .max_flops = 1e10,
          .seconds_per_point = 4e-3,
          .passes = 3};
}

// One grid to be: what to launch at each of its points, and the times so far.
struct Grid {
  std::vector<KernelModel::Axis> axes;  // empty for row kernels, whose axis is in bytes
  std::vector<std::function<LaunchTime()>> launches;  // empty where the point is too large
  std::vector<double> work;
  std::vector<std::vector<RatedSample>> samples;
  KernelKey key;
  KernelModel::Axis bytes;
};

class Doctor {
 public:
  Doctor(const DoctorOptions& options)
      : options_(options),
        effort_(effort_of(options.quick)),
        bench_(kernels::cpu_table(), options.threads, kSlabBytes),
        memory_(options.threads) {}

  HardwareProfile measure();

 private:
  void list_row_grids(DType dtype);
  void list_matmul_grid(DType dtype, int form);
  void list_attention_grid(DType dtype, bool backward);
  void run_pass(int pass);
  void look_at_rate();
  void run_point(Grid& grid, std::size_t i);

  DoctorOptions options_;
  Effort effort_;
  KernelBench bench_;
  MemoryProbe memory_;
  std::vector<double> memory_rates_;  // one before each grid
  std::vector<Grid> grids_;
  // Multiply-adds in fp32, looked at over the whole measurement as often as `bench` looks in a
  // step.
  std::vector<FmaRate> rates_;
  std::chrono::steady_clock::time_point last_look_;
};

void Doctor::list_row_grids(DType dtype) {
  for (const RowCase& row_case : row_cases()) {
    if (row_case.fp32_only && dtype != DType::f32) continue;
    Grid grid;
    const std::int64_t row_bytes = row_case.cols * static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t rows = 1; rows * row_bytes <= effort_.max_operand;
         rows *= effort_.row_factor) {
      grid.launches.push_back(
          [this, launch = row_case.launch, dtype, rows] { return launch(bench_, dtype, rows); });
    }
    grids_.push_back(std::move(grid));
  }
}

void Doctor::list_matmul_grid(DType dtype, int form) {
  Grid grid{.axes = {effort_.matmul, effort_.matmul, effort_.matmul}};
  for (const double m : effort_.matmul) {
    for (const double n : effort_.matmul) {
      for (const double k : effort_.matmul) {
        grid.work.push_back(2 * m * n * k);
        const double largest = 4 * std::max({m * n, m * k, n * k});
        const bool fits = 2 * largest <= static_cast<double>(bench_.slab_bytes()) &&
                          2 * m * n * k <= effort_.max_flops;
        grid.launches.push_back(!fits ? std::function<LaunchTime()>{} : [=, this] {
          return launch_matmul(bench_, dtype, form, static_cast<std::int64_t>(m),
                               static_cast<std::int64_t>(n), static_cast<std::int64_t>(k));
        });
      }
    }
  }
  grids_.push_back(std::move(grid));
}

void Doctor::list_attention_grid(DType dtype, bool backward) {
  Grid grid{.axes = {effort_.heads, effort_.rows, effort_.head_dim}};
  for (const double heads : effort_.heads) {
    for (const double rows : effort_.rows) {
      for (const double head_dim : effort_.head_dim) {
        // The causal count of AttentionForward and AttentionBackward.
        grid.work.push_back((backward ? 5 : 2) * heads * rows * rows * head_dim);
        const bool fits = grid.work.back() <= effort_.max_flops / 4;
        grid.launches.push_back(!fits ? std::function<LaunchTime()>{} : [=, this] {
          return launch_attention(bench_, dtype, backward, static_cast<std::int64_t>(heads),
                                  static_cast<std::int64_t>(rows),
                                  static_cast<std::int64_t>(head_dim));
        });
      }
    }
  }
  grids_.push_back(std::move(grid));
}

void Doctor::look_at_rate() {
  rates_.push_back(measure_fma_rate(DType::f32, options_.threads, FmaSampler::kSampleSeconds));
  last_look_ = std::chrono::steady_clock::now();
}

void Doctor::run_point(Grid& grid, std::size_t i) {
  constexpr int kMaxRepetitions = 40;
  std::vector<RatedSample>& samples = grid.samples[i];
  if (samples.empty()) {
    const LaunchTime first = grid.launches[i]();  // not timed: the library prepares the product
    grid.key = first.key;
    if (grid.axes.empty()) {
      grid.bytes.push_back(first.point.position[0]);
      grid.work.push_back(first.point.work);
    }
  }
  double spent = 0;
  for (int r = 0; r < kMaxRepetitions; ++r) {
    if (spent > effort_.seconds_per_point) break;
    samples.push_back({grid.launches[i]().seconds, rates_.size() - 1});
    spent += samples.back().seconds;
    const std::chrono::duration<double> unseen = std::chrono::steady_clock::now() - last_look_;
    if (unseen.count() > FmaSampler::kWorkSeconds) look_at_rate();
  }
}

void Doctor::run_pass(int pass) {
  for (std::size_t g = 0; g < grids_.size(); ++g) {
    Grid& grid = grids_[g];
    bench_.refill();
    grid.samples.resize(grid.launches.size());
    memory_rates_.push_back(memory_.pass_rate());
    look_at_rate();
    for (std::size_t i = 0; i < grid.launches.size(); ++i) {
      if (grid.launches[i]) run_point(grid, i);
    }
    if (options_.progress) {
      const double done = pass + static_cast<double>(g + 1) / static_cast<double>(grids_.size());
      options_.progress(to_string(grid.key), done / effort_.passes);
    }
  }
}

HardwareProfile Doctor::measure() {
  HardwareProfile profile;
  profile.machine = machine_facts();
  profile.threads = options_.threads;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    list_row_grids(dtype);
    for (int form = 0; form < kNumForms; ++form) list_matmul_grid(dtype, form);
    for (const bool backward : {false, true}) list_attention_grid(dtype, backward);
  }
  for (int pass = 0; pass < effort_.passes; ++pass) run_pass(pass);
  look_at_rate();

  profile.peak_fp32_flops = undisturbed_peak(rates_);
  profile.memory_bytes_per_second = quantile(memory_rates_, 0.9);
  const auto peak = [&](DType dtype) { return measure_fma_rate(dtype, options_.threads).peak; };
  profile.peak_bf16_flops = profile.peak_fp32_flops * peak(DType::bf16) / peak(DType::f32);
  constexpr double kLow = 0.2;
  std::vector<double> spreads;
  profile.launch_seconds = 1e30;
  for (Grid& grid : grids_) {
    std::vector<double> seconds;
    for (const std::vector<RatedSample>& samples : grid.samples) {
      seconds.push_back(0);
      if (samples.empty()) continue;
      const std::vector<double> times = seconds_at(profile.peak_fp32_flops, samples, rates_);
      seconds.back() = usual(times);
      spreads.push_back(quantile(times, 0.5) / quantile(times, kLow) - 1);
    }
    profile.launch_seconds = std::min(profile.launch_seconds, seconds.front());
    if (grid.axes.empty()) grid.axes = {grid.bytes};
    const bool is_new =
        profile.kernels.emplace(grid.key, KernelModel(grid.axes, grid.work, seconds)).second;
    require(is_new, "two measurements of {}", to_string(grid.key));
  }
  profile.noise = quantile(spreads, 0.5);
  constexpr double kDisturbed = 0.7;
  std::vector<double> peaks;
  for (const FmaRate& rate : rates_) peaks.push_back(rate.peak);
  if (const double slow = quantile(peaks, 0.1); slow < kDisturbed * profile.peak_fp32_flops) {
    log::warning(
        "the rate of multiply-adds moved between {:.0f} and {:.0f} GFLOP/s while it was "
        "measured: something else runs here; measure again when nothing does",
        slow / 1e9, profile.peak_fp32_flops / 1e9);
  }
  return profile;
}

}  // namespace

HardwareProfile measure_profile(const DoctorOptions& options) { return Doctor(options).measure(); }

}  // namespace llmtrain::plan
