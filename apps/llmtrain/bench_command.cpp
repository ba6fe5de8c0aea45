// bench: where a step's time goes.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "apps/llmtrain/bench_steps.hpp"
#include "apps/llmtrain/commands.hpp"
#include "lib/base/log.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/fma_sampler.hpp"
#include "lib/plan/gpu_rates.hpp"
#include "lib/plan/kernel_clock.hpp"
#include "lib/train/planned_time.hpp"

namespace llmtrain::app {

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// What a bench found; times in seconds.
struct BenchReport {
  struct Row {
    std::string name;
    std::int64_t launches;
    double seconds;  // per step
    std::optional<double> predicted;
    bool products;       // rated by FLOP, else by bytes
    double rate;         // per second
    double of_peak = 0;  // of the multiply-add peak or of the memory's bandwidth; 0 = unknown
    double of_copy = 0;  // of a GPU's rate of copies in this run; 0 = rated by FLOP
  };
  std::vector<Row> kernels;
  double mean = 0, median = 0, best = 0, outside = 0;
  double tokens_per_second = 0;
  std::optional<double> predicted;
  // The median step, each by as much faster or slower as the multiply-add rate during it was below
  // or above the profile's peak: what a machine as fast as in the profile would take, which is what
  // `predicted` foretells.
  std::optional<double> at_profile_speed;
  // Of the steps, each against the peak during it: a machine that others use too is slower for
  // both. 0 without a peak.
  double mfu = 0, peak_flops = 0;
  // Of the steps' peaks, whose median is `peak_flops`.
  double lowest_peak = 0, highest_peak = 0;
  // The same against the mean rate of multiply-adds, which is what others left of the peak.
  double of_mean_rate = 0;
  /// Bytes read and written per second by an update in place, between the steps.
  double memory_rate = 0;
  std::optional<GpuMemory> memory;
  plan::CopyRate copy;
};

void rate_steps(BenchReport& report, const train::RunPlan& planned, const MeasuredSteps& measured) {
  const double step_flops =
      planned.plan.model_flops_per_token * static_cast<double>(planned.plan.tokens_per_step);
  const double profile_peak = planned.time ? planned.time->step.peak_flops : 0;
  std::vector<double> seconds, mfu, of_mean, peaks, at_profile_speed;
  for (const auto& step : measured.steps) {
    seconds.push_back(step.seconds);
    peaks.push_back(step.rate.peak);
    mfu.push_back(step.rate.peak > 0 ? step_flops / step.seconds / step.rate.peak : 0);
    of_mean.push_back(step.rate.mean > 0 ? step_flops / step.seconds / step.rate.mean : 0);
    if (profile_peak > 0 && step.rate.mean > 0) {
      at_profile_speed.push_back(step.seconds * step.rate.mean / profile_peak);
    }
  }
  report.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                static_cast<double>(measured.steps.size());
  report.median = median(seconds);
  report.best = *std::min_element(seconds.begin(), seconds.end());
  report.tokens_per_second = static_cast<double>(planned.plan.tokens_per_step) / report.median;
  report.mfu = median(mfu);
  report.of_mean_rate = median(of_mean);
  report.peak_flops = median(peaks);
  report.lowest_peak = *std::min_element(peaks.begin(), peaks.end());
  report.highest_peak = *std::max_element(peaks.begin(), peaks.end());
  if (!at_profile_speed.empty()) report.at_profile_speed = median(at_profile_speed);
}

BenchReport::Row make_row(const plan::KernelTime& kernel, std::int64_t steps,
                          const BenchReport& report, std::string_view peak_type) {
  BenchReport::Row row;
  row.name = kernel.name;
  row.launches = kernel.count / steps;
  row.seconds = kernel.seconds / static_cast<double>(steps);
  row.products = kernel.cost.flops > 0;
  row.rate = (row.products ? kernel.cost.flops : kernel.cost.bytes()) / kernel.seconds;
  const double peak = !row.products                      ? report.memory_rate
                      : kernel.name.ends_with(peak_type) ? report.peak_flops
                                                         : 0;
  row.of_peak = peak > 0 ? row.rate / peak : 0;
  const double copied = report.copy.bytes_per_second;
  row.of_copy = !row.products && copied > 0 ? row.rate / copied : 0;
  return row;
}

BenchReport make_report(const train::RunPlan& planned, const MeasuredSteps& measured,
                        DType compute) {
  BenchReport report;
  rate_steps(report, planned, measured);
  report.memory_rate = median(measured.memory_rates);
  report.memory = measured.memory;
  report.copy = measured.copy;
  const auto steps = measured.clocked_steps;
  std::map<std::string, double> predicted;
  if (planned.time) {
    report.predicted = planned.time->step.seconds;
    for (const auto& kernel : planned.time->step.kernels) predicted[kernel.name] = kernel.seconds;
  }
  report.outside = report.mean;
  const std::string_view peak_type = planned.plan.tf32 ? "tf32" : to_string(compute);
  for (const auto& kernel : measured.kernels) {
    BenchReport::Row row = make_row(kernel, steps, report, peak_type);
    const auto time = predicted.find(kernel.name);
    if (time != predicted.end()) row.predicted = time->second;
    report.outside -= row.seconds;
    report.kernels.push_back(std::move(row));
  }
  return report;
}

std::string mfu_formula(const BenchReport& report, const train::Recipe& recipe,
                        const train::RunPlan& planned) {
  const int threads = planned.plan.device == DeviceKind::cpu ? recipe.threads() : 0;
  return plan::mfu_formula(planned.plan, {report.peak_flops, recipe.precision.compute(), threads});
}

std::string gpu_text(const BenchReport& report) {
  const std::string of_sheet =
      report.memory_rate > 0 ? fmt::format(", {:.0f}% of the data sheet's",
                                           100 * report.copy.bytes_per_second / report.memory_rate)
                             : "";
  return fmt::format(
      "\nkernels were timed by the GPU's clock, in steps of their own\n"
      "a copy of {} in this run: {:.1f} GB/s read and written{}\n"
      "memory: {} planned, {} reached of the arena's {}, {} in use on the GPU by the driver\n",
      format_bytes(report.copy.copied_bytes), 1e-9 * report.copy.bytes_per_second, of_sheet,
      format_bytes(report.memory->planned), format_bytes(report.memory->reached),
      format_bytes(report.memory->arena), format_bytes(report.memory->in_use));
}

std::string to_text(const BenchReport& report, const train::Recipe& recipe,
                    const train::RunPlan& planned) {
  std::string text = fmt::format("{:<26}{:>9}{:>12}{:>8}{:>12}{:>14}{:>9}\n", "per step",
                                 "launches", "measured", "share", "predicted", "rate", "of peak");
  const auto row = [&](std::string_view name, std::int64_t count, double seconds,
                       std::optional<double> predicted, const std::string& rate,
                       const std::string& of_peak) {
    text += fmt::format("{:<26}{:>9}{:>12}{:>7.1f}%{:>12}{:>14}{:>9}\n", name, count,
                        format_duration(seconds), 100 * seconds / report.mean,
                        predicted ? format_duration(*predicted) : "-", rate, of_peak);
  };
  for (const auto& kernel : report.kernels) {
    row(kernel.name, kernel.launches, kernel.seconds, kernel.predicted,
        fmt::format("{:.1f} {}", 1e-9 * kernel.rate, kernel.products ? "GFLOP/s" : "GB/s"),
        kernel.of_peak > 0 ? fmt::format("{:.0f}%", 100 * kernel.of_peak) : "-");
  }
  row("outside of kernels", 0, report.outside, std::nullopt, "-", "-");
  row("step, mean", 0, report.mean, report.predicted, "-", "-");
  text += fmt::format("median step {}, best {}, {} tokens/s, determinism {}",
                      format_duration(report.median), format_duration(report.best),
                      format_count(report.tokens_per_second),
                      kernels::to_string(planned.plan.determinism));
  if (report.at_profile_speed) {
    text += fmt::format(", {} at the profile's speed", format_duration(*report.at_profile_speed));
  }
  if (report.mfu > 0) {
    const bool on_cpu = planned.plan.device == DeviceKind::cpu;
    text += fmt::format(", MFU {:.1f}%\nMFU = {}", 100 * report.mfu,
                        mfu_formula(report, recipe, planned));
    if (on_cpu) {
      text += fmt::format(
          ", in pauses of each step ({:.0f} to {:.0f} GFLOP/s); {:.1f}% of the mean rate there",
          1e-9 * report.lowest_peak, 1e-9 * report.highest_peak, 100 * report.of_mean_rate);
    }
  }
  if (report.memory) return text + gpu_text(report);
  text += fmt::format(
      "\nmemory {:.1f} GB/s read and written in place, between the steps; what fits into the "
      "caches may exceed it",
      1e-9 * report.memory_rate);
  return text + "\n";
}

std::string to_json(const BenchReport& report, const train::Recipe& recipe,
                    const train::RunPlan& planned) {
  nlohmann::ordered_json json;
  json["tokens_per_step"] = planned.plan.tokens_per_step;
  json["determinism"] = kernels::to_string(planned.plan.determinism);
  json["median_step_seconds"] = report.median;
  json["best_step_seconds"] = report.best;
  json["mean_step_seconds"] = report.mean;
  if (report.mfu > 0) {
    json["mfu"] = report.mfu;
    json["mfu_formula"] = mfu_formula(report, recipe, planned);
    json["peak_flops"] = report.peak_flops;
    json["lowest_peak_flops"] = report.lowest_peak;
    json["highest_peak_flops"] = report.highest_peak;
    json["share_of_mean_rate"] = report.of_mean_rate;
  }
  if (report.predicted) json["predicted_step_seconds"] = *report.predicted;
  if (report.at_profile_speed) json["step_seconds_at_profile_speed"] = *report.at_profile_speed;
  json["memory_bytes_per_second"] = report.memory_rate;
  if (report.memory) {
    json["copy_bytes_per_second"] = report.copy.bytes_per_second;
    json["planned_bytes"] = report.memory->planned;
    json["arena_bytes"] = report.memory->arena;
    json["reached_bytes"] = report.memory->reached;
    json["used_bytes_of_gpu"] = report.memory->in_use;
  }
  json["kernels"] = nlohmann::ordered_json::array();
  for (const auto& kernel : report.kernels) {
    nlohmann::ordered_json row = {
        {"name", kernel.name},
        {"launches", kernel.launches},
        {"seconds", kernel.seconds},
        {kernel.products ? "flops_per_second" : "bytes_per_second", kernel.rate}};
    if (kernel.of_peak > 0) row["of_peak"] = kernel.of_peak;
    if (kernel.of_copy > 0) row["of_copy"] = kernel.of_copy;
    if (kernel.predicted) row["predicted_seconds"] = *kernel.predicted;
    json["kernels"].push_back(std::move(row));
  }
  return json.dump(2) + "\n";
}

}  // namespace

ExitCode bench(const RecipeArguments& arguments, const BenchArguments& how) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  recipe->enter({});
  const engine::BatchGeometry geometry = recipe->geometry();
  const train::RunPlan planned = train::plan_run(*recipe, geometry, how.profile);
  const BenchReport report =
      make_report(planned, measure_steps(*recipe, planned, how.steps, how.planned_memory),
                  recipe->precision.compute());
  const std::string text =
      how.json ? to_json(report, *recipe, planned) : to_text(report, *recipe, planned);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return ExitCode::done;
}

}  // namespace llmtrain::app
