#include "apps/llmtrain/bench_steps.hpp"

#include <algorithm>
#include <chrono>

#include "lib/base/log.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/plan/memory_probe.hpp"
#include "lib/plan/nominal_profile.hpp"
#include "lib/train/device.hpp"
#include "lib/train/product_tuning.hpp"

namespace llmtrain::app {

namespace {

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

plan::FmaSampler make_sampler(DType compute, int threads) {
  if (compute == DType::f64) return plan::FmaSampler(nullptr);
  return plan::FmaSampler([compute, threads] {
    return plan::measure_fma_rate(compute, threads, plan::FmaSampler::kSampleSeconds);
  });
}

/// On a device of which no engine has memory now.
void copy_once(train::RunDevice& device, plan::CopyRate& best) {
  const plan::CopyRate rate = plan::measure_copy(device.device(), device.device().capacity_bytes());
  if (rate.bytes_per_second > best.bytes_per_second) best = rate;
}

/// Whole steps first, as the queue runs them; then two whose kernels the GPU's clock times one by
/// one, in a queue as full.
MeasuredSteps measure_on_gpu(train::RunDevice& device, const train::Recipe& recipe,
                             const train::RunPlan& planned, std::int64_t steps) {
  using Clock = std::chrono::steady_clock;
  // Launches are recorded in the second step and replayed from the third on; what the GPU's clock
  // times is launched one by one.
  constexpr std::int64_t kClocked = 2;
  MeasuredSteps measured{.clocked_steps = kClocked};
  plan::FmaRate peak;
  const kernels::AcceleratorFacts& gpu = *device.gpu();
  if (const plan::HardwareSheet* sheet = plan::sheet_of(gpu.name, gpu.memory_bytes)) {
    peak.peak = peak.mean = is_half_width(recipe.precision.compute()) ? sheet->bf16_flops
                            : recipe.precision.tf32()                 ? sheet->tf32_flops
                                                                      : sheet->fp32_flops;
    measured.memory_rates.push_back(sheet->bytes_per_second);
  } else {
    measured.memory_rates.push_back(0);
  }
  copy_once(device, measured.copy);
  train::tune_products(recipe, device, planned.plan, "");
  const engine::BatchGeometry geometry = recipe.geometry();
  plan::KernelClock clock(*device.place().table, device.backend()->time_launches(device.device()));
  const auto run_steps = [&](bool clocked, std::int64_t count) {
    const std::int64_t warmup = clocked ? 1 : 3, timed = warmup + count;
    // Launches wait for room in the queue, so that a step is seen to end when the next one has been
    // launched: the last is seen early, and does not count.
    const std::int64_t last = clocked ? timed : timed + 1;
    engine::EnginePlace place = device.place();
    place.host_activation_bytes = planned.plan.host_activation_bytes();
    if (clocked) {
      place.table = &clock.table();
      place.recorder = &clock;
    }
    engine::Engine engine(place, recipe.engine_options());
    engine.initialize();
    const engine::StepBatch batch = random_batch(geometry.global_batch_size(), geometry.seq_len(),
                                                 engine.model().spec().vocab_size);
    std::int64_t settled = 0;
    auto begin = Clock::now();
    for (std::int64_t step = 1; step <= last; ++step) {
      if (step == warmup + 1) clock.reset();
      engine.launch_step(batch, step, {});
      // As in a run, the next step is in the queue before this one is done.
      const int ahead = step == last ? 0 : 1;
      while (engine.steps_in_flight() > ahead) {
        engine.settle_step();
        const auto end = Clock::now();
        const double seconds = std::chrono::duration<double>(end - begin).count();
        begin = end;
        if (!clocked && ++settled > warmup && settled <= timed) {
          measured.steps.push_back({.seconds = seconds, .rate = peak});
        }
      }
    }
    const std::uint64_t free = device.backend()->free_bytes(device.share().gpu);
    if (!clocked) {
      measured.memory = {.planned = planned.plan.extent_bytes(),
                         .arena = device.device().capacity_bytes(),
                         .reached = device.device().arena_extent_bytes(),
                         .in_use = gpu.memory_bytes - std::min(gpu.memory_bytes, free)};
    }
  };
  run_steps(false, steps);
  for (const std::string& line : device.choices()) log::info("{}", line);
  run_steps(true, kClocked);
  measured.kernels = clock.times();
  copy_once(device, measured.copy);
  return measured;
}

}  // namespace

MeasuredSteps measure_steps(const train::Recipe& recipe, const train::RunPlan& planned,
                            std::int64_t steps, bool planned_memory) {
  const bool has_files = recipe.offload.uses_files(planned.plan.device);
  require<RecipeError>(!has_files || recipe.offload.path(),
                       "offload.path: name the directory for what is offloaded, because nothing of "
                       "a benchmark is in run.output_dir");
  train::RunDevice device(
      recipe, planned_memory ? std::optional(planned.plan.extent_bytes()) : std::nullopt);
  if (device.gpu()) return measure_on_gpu(device, recipe, planned, steps);
  const engine::BatchGeometry geometry = recipe.geometry();
  const DType compute = recipe.precision.compute();
  plan::FmaSampler sampler = make_sampler(compute, recipe.threads());
  plan::KernelClock clock(engine::cpu_kernels(compute), [&sampler] { sampler.pause(); });
  engine::EnginePlace place = device.place();
  place.table = &clock.table();
  place.recorder = &clock;
  engine::Engine engine(place, recipe.engine_options());
  engine.initialize();
  const auto vocab = engine.model().spec().vocab_size;
  const engine::StepBatch batch =
      random_batch(geometry.global_batch_size(), geometry.seq_len(), vocab);
  constexpr std::int64_t kWarmup = 2;  // memory appears, products are prepared
  for (std::int64_t step = 1; step <= kWarmup; ++step) engine.train_step(batch, step, 1.0);
  clock.reset();
  MeasuredSteps measured{.clocked_steps = steps};
  plan::MemoryProbe memory(recipe.threads());
  measured.memory_rates.push_back(memory.rate());
  for (std::int64_t step = kWarmup + 1; step <= kWarmup + steps; ++step) {
    sampler.begin();
    engine.train_step(batch, step, 1.0);
    measured.steps.push_back(sampler.end());
    measured.memory_rates.push_back(memory.rate());
  }
  measured.kernels = clock.times();
  return measured;
}

}  // namespace llmtrain::app
