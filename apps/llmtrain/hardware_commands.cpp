// doctor, bench: what this machine can do, and where a step's time goes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/doctor.hpp"
#include "lib/plan/kernel_clock.hpp"
#include "lib/plan/machine.hpp"
#include "lib/train/planned_time.hpp"

namespace llmtrain::app {

namespace {

using Clock = std::chrono::steady_clock;

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string machine_text(const plan::MachineFacts& machine, const std::filesystem::path& output) {
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<20}{}\n", name, value);
  };
  line("processor", machine.cpu);
  line("cores", std::to_string(machine.cores));
  line("instructions", machine.instruction_set);
  line("last-level cache", machine.cache_bytes > 0 ? format_bytes(machine.cache_bytes) : "unknown");
  line("memory", format_bytes(machine.memory_bytes));
  line("disk free here", format_bytes(free_disk_bytes(".")));
  line("disk free, cache", format_bytes(free_disk_bytes(output)));
  line("oneDNN", machine.onednn_version);
  line("CUDA", "not in this build");
  line("MPI", "not in this build");
  return text;
}

engine::StepBatch random_batch(std::int64_t samples, std::int64_t seq_len, std::int64_t vocab) {
  engine::StepBatch batch;
  batch.resize(samples, seq_len);
  const PhiloxKey key = philox_key(0, "bench", "tokens");
  const auto below = static_cast<std::uint64_t>(vocab);
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<std::int32_t>(philox_below(key, 0, i, below));
    batch.targets[i] = static_cast<std::int32_t>(philox_below(key, 1, i, below));
    batch.doc_begin[i] = 0;
    batch.positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(seq_len));
  }
  batch.trained_tokens = samples * seq_len;
  return batch;
}

struct MeasuredSteps {
  std::vector<double> seconds;            // of each step
  std::vector<plan::KernelTime> kernels;  // of all steps together
};

MeasuredSteps measure_steps(const train::Recipe& recipe, const engine::BatchGeometry& geometry,
                            std::int64_t steps) {
  plan::KernelClock clock(recipe.precision.compute() == DType::f64 ? kernels::cpu_reference_table()
                                                                   : kernels::cpu_table());
  Device device(make_cpu_memory(), recipe.memory_limit());
  engine::Engine engine(
      {.device = &device, .table = &clock.table(), .threads = recipe.threads(), .recorder = &clock},
      recipe.engine_options());
  engine.initialize();
  const auto vocab = engine.model().spec().vocab_size;
  const engine::StepBatch batch =
      random_batch(geometry.global_batch_size(), geometry.seq_len(), vocab);
  constexpr std::int64_t kWarmup = 2;  // memory appears, products are prepared
  MeasuredSteps measured;
  for (std::int64_t step = 1; step <= kWarmup + steps; ++step) {
    if (step == kWarmup + 1) clock.reset();
    const Clock::time_point begin = Clock::now();
    engine.train_step(batch, step, 1.0);
    if (step > kWarmup) measured.seconds.push_back(seconds_since(begin));
  }
  measured.kernels = clock.times();
  return measured;
}

}  // namespace

ExitCode doctor(const Measurement& arguments) {
  const std::filesystem::path output = arguments.output.value_or(plan::default_profile_path());
  const plan::MachineFacts machine = plan::machine_facts();
  print(machine_text(machine, output));
  require<RecipeError>(arguments.threads >= 0 && arguments.threads <= 4096,
                       "--threads is {}, expected 1 to 4096 (0 = all cores)", arguments.threads);
  plan::DoctorOptions options{.threads = arguments.threads > 0 ? arguments.threads : machine.cores,
                              .quick = arguments.quick};
  const Clock::time_point begin = Clock::now();
  const plan::HardwareProfile profile = plan::measure_profile(options);
  print(fmt::format("{:<20}{}\n", "threads measured", profile.threads));
  print(fmt::format("{:<20}{:.0f} GFLOP/s fp32, {:.0f} GFLOP/s bf16\n", "multiply-add peak",
                    1e-9 * profile.peak_fp32_flops, 1e-9 * profile.peak_bf16_flops));
  print(fmt::format("{:<20}{:.1f} GB/s\n", "memory bandwidth",
                    1e-9 * profile.memory_bytes_per_second));
  print(fmt::format("{:<20}{}\n", "smallest launch", format_duration(profile.launch_seconds)));
  print(fmt::format("{:<20}{:.1f}% (median over low quantile of the repetitions)\n", "noise",
                    100 * profile.noise));
  if (output.has_parent_path()) create_directories_durably(output.parent_path());
  write_file_atomic(output, plan::to_json(profile));
  print(fmt::format("{}: {} kernels in {}\n", output.string(), profile.kernels.size(),
                    format_duration(seconds_since(begin))));
  return ExitCode::done;
}

ExitCode bench(const RecipeArguments& arguments, std::int64_t steps,
               const std::optional<std::filesystem::path>& profile) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const engine::BatchGeometry geometry(recipe->training);
  const train::RunPlan planned = train::plan_run(*recipe, geometry, profile);
  MeasuredSteps measured = measure_steps(*recipe, geometry, steps);

  std::map<std::string, double> predicted;
  if (planned.time) {
    for (const auto& kernel : planned.time->step.kernels) predicted[kernel.name] = kernel.seconds;
  }
  print(fmt::format("{:<34}{:>9}{:>12}{:>8}{:>12}\n", "per step", "launches", "measured", "share",
                    "predicted"));
  const auto row = [&](std::string_view name, std::int64_t count, double seconds, double all,
                       std::optional<double> time) {
    print(fmt::format("{:<34}{:>9}{:>12}{:>7.1f}%{:>12}\n", name, count, format_duration(seconds),
                      100 * seconds / all, time ? format_duration(*time) : "-"));
  };
  double sum = 0;
  for (const double s : measured.seconds) sum += s;
  const double mean = sum / static_cast<double>(steps);
  double outside = mean;
  for (const auto& kernel : measured.kernels) {
    const double seconds = kernel.seconds / static_cast<double>(steps);
    outside -= seconds;
    const auto time = predicted.find(kernel.name);
    row(kernel.name, kernel.count / steps, seconds, mean,
        time == predicted.end() ? std::nullopt : std::optional(time->second));
  }
  row("outside of kernels", 0, outside, mean, std::nullopt);
  std::sort(measured.seconds.begin(), measured.seconds.end());
  const double median = measured.seconds[measured.seconds.size() / 2];
  row("step, mean", 0, mean, mean,
      planned.time ? std::optional(planned.time->step.seconds) : std::nullopt);
  const double rate = static_cast<double>(planned.plan.tokens_per_step) / median;
  print(fmt::format("median step {}, best {}, {} tokens/s", format_duration(median),
                    format_duration(measured.seconds.front()), format_count(rate)));
  if (const auto mfu = planned.mfu(rate)) {
    print(fmt::format(", MFU {:.1f}%\nMFU = {}", 100 * *mfu, planned.mfu_formula()));
  }
  print("\n");
  return ExitCode::done;
}

}  // namespace llmtrain::app
