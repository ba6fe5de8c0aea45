// doctor: what this machine can do.
#include <chrono>
#include <cstdio>
#include <numeric>

#include "apps/llmtrain/commands.hpp"
#include "kernels/backend.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/plugin.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/comm/world.hpp"
#include "lib/plan/collective_bench.hpp"
#include "lib/plan/doctor.hpp"
#include "lib/plan/gpu_rates.hpp"
#include "lib/plan/machine.hpp"
#include "lib/plan/nominal_profile.hpp"
#include "lib/train/peers.hpp"

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
  const std::filesystem::path mpi = plugin_file("mpi");  // to load it would start MPI
  line("MPI plugin", mpi.empty() ? "none: several processes of a run meet by TCP" : mpi.string());
  return text;
}

/// "141.00 GiB of 143.77 GiB free" of the GPU that a run takes; to ask others would prepare them
/// for use, so of them there is only the size.
std::string memory_text(const kernels::Backend& backend, std::size_t number,
                        const kernels::AcceleratorFacts& gpu) {
  if (number > 0) return format_bytes(gpu.memory_bytes);
  try {
    return fmt::format("{} of {} free", format_bytes(backend.free_bytes(0)),
                       format_bytes(gpu.memory_bytes));
  } catch (const DeviceError& error) {
    return fmt::format("{}, not to be used now: {}", format_bytes(gpu.memory_bytes), error.what());
  }
}

/// "2950 GB/s copied (512 MiB, read and written), 712.0 TFLOP/s bf16 (8192 x 8192 x 8192)" of the
/// GPU that a run takes.
std::string measured_text(const kernels::Backend& backend) {
  try {
    const plan::GpuRates rates = plan::measure_gpu(backend, 0);
    return fmt::format(
        "{:.4g} GB/s copied ({}, read and written), {:.4g} TFLOP/s bf16 ({} x {} x {})",
        1e-9 * rates.copy.bytes_per_second, format_bytes(rates.copy.copied_bytes), 1e-12 * rates.bf16_flops,
        rates.side, rates.side, rates.side);
  } catch (const Error& error) {
    return fmt::format("nothing: {}", error.what());
  }
}

/// What the plugin finds: versions, and every GPU with the rates that its data sheet promises.
std::string gpu_text() {
  const kernels::LoadedBackend& loaded = kernels::load_backend(DeviceKind::cuda);
  const auto line = [](std::string_view name, std::string_view value) {
    return fmt::format("{:<20}{}\n", name, value);
  };
  if (loaded.backend == nullptr) return line("CUDA", "none: " + loaded.problem);
  const kernels::BackendReport report = loaded.backend->report();
  std::string text = line("CUDA plugin", loaded.file.string());
  for (const auto& [library, version] : report.versions) text += line(library, version);
  if (!report.problem.empty()) text += line("GPU", "none: " + report.problem);
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const kernels::AcceleratorFacts& gpu = report.devices[i];
    text += line(fmt::format("GPU {}", i),
                 fmt::format("{}, sm_{}, {} multiprocessors, {}", gpu.name, gpu.capability,
                             gpu.multiprocessors, memory_text(*loaded.backend, i, gpu)));
    const plan::HardwareSheet* sheet = plan::sheet_of(gpu.name, gpu.memory_bytes);
    if (sheet != nullptr) {
      text +=
          line("  data sheet",
               fmt::format("{}: {:.0f} TFLOP/s bf16 (dense), {:.0f} tf32, {:.1f} fp32, {:.2f} TB/s",
                           sheet->title, 1e-12 * sheet->bf16_flops, 1e-12 * sheet->tf32_flops,
                           1e-12 * sheet->fp32_flops, 1e-12 * sheet->bytes_per_second));
    }
    const bool taken = i == 0 && report.problem.empty();
    if (taken) text += line("  measured", measured_text(*loaded.backend));
  }
  return text;
}

/// Every kernel at the largest size that was measured.
std::string kernels_text(const plan::HardwareProfile& profile) {
  std::string text = fmt::format("{:<42}{:>12}{:>11}{:>15}{:>9}\n", "kernel, its largest launch",
                                 "work", "time", "rate", "of peak");
  for (const auto& [key, model] : profile.kernels) {
    std::size_t largest = 0;
    for (std::size_t i = 0; i < model.work().size(); ++i) {
      if (model.seconds()[i] > 0 && model.work()[i] > model.work()[largest]) largest = i;
    }
    const double work = model.work()[largest], seconds = model.seconds()[largest];
    const bool in_flops = plan::num_axes(key.name) > 1;
    const double peak = in_flops ? profile.peak_flops(key.dtype) : profile.memory_bytes_per_second;
    text += fmt::format("{:<42}{:>8.1f} {:<3}{:>11}{:>7.1f} {:<7}{:>8.0f}%\n", to_string(key),
                        1e-6 * work, in_flops ? "MF" : "MB", format_duration(seconds),
                        1e-9 * work / seconds, in_flops ? "GFLOP/s" : "GB/s",
                        100 * work / seconds / peak);
  }
  return text;
}

/// "rank 3  node-b, process 1 of 2 there", and what connects them.
std::string ranks_text(const std::vector<std::string>& places, std::string_view connection) {
  std::string text = fmt::format("{:<20}{}\n", "ranks connected by", connection);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    text += fmt::format("{:<20}{}\n", fmt::format("rank {}", rank), places[rank]);
  }
  return text;
}

std::string collectives_text(const plan::HardwareProfile& profile) {
  std::string text =
      fmt::format("{:<20}{:>12}{:>12}{:>12}\n", "collective", "smallest", "largest", "rate");
  for (const auto& [kind, model] : profile.collectives) {
    text += fmt::format("{:<20}{:>12}{:>12}{:>7.1f} GB/s\n", to_string(kind),
                        format_duration(model.seconds().front()),
                        format_duration(model.seconds().back()),
                        1e-9 * model.work().back() / model.seconds().back());
  }
  return text;
}

std::string peaks_text(const plan::HardwareProfile& profile) {
  return fmt::format("{:<20}{}\n", "threads measured", profile.threads) +
         fmt::format("{:<20}{:.0f} GFLOP/s fp32, {:.0f} GFLOP/s bf16\n", "multiply-add peak",
                     1e-9 * profile.peak_fp32_flops, 1e-9 * profile.peak_bf16_flops) +
         fmt::format("{:<20}{:.1f} GB/s\n", "memory bandwidth",
                     1e-9 * profile.memory_bytes_per_second) +
         fmt::format("{:<20}{}\n", "smallest launch", format_duration(profile.launch_seconds)) +
         fmt::format("{:<20}{:.1f}% (median over low quantile of the repetitions)\n", "noise",
                     100 * profile.noise);
}

/// All ranks measure at the same time, as they would train; rank 0's figures are kept.
plan::HardwareProfile measure(const Measurement& arguments, int cores, Communicator& job,
                              int local_size) {
  const plan::DoctorOptions options{
      .threads = arguments.threads > 0 ? arguments.threads : std::max(1, cores / local_size),
      .quick = arguments.quick};
  job.barrier("start of measuring");
  plan::HardwareProfile profile = plan::measure_profile(options);
  profile.ranks = job.size();
  constexpr std::uint64_t kBytes = std::uint64_t{512} << 20;
  Device device(make_cpu_memory(), kBytes);
  profile.collectives = plan::measure_collectives(job, device, arguments.quick);
  return profile;
}

ExitCode doctor_of_rank(const Measurement& arguments, World& world) {
  const JobPlace& place = world.place();
  const std::filesystem::path output =
      arguments.output.value_or(plan::default_profile_path(place.size));
  const plan::MachineFacts machine = plan::machine_facts();
  std::vector<int> all(static_cast<std::size_t>(place.size));
  std::iota(all.begin(), all.end(), 0);
  const auto job = world.make_group("job", all, place.rank);
  const World::LongWait patience(world);
  const std::vector<std::string> places = job->gather_texts(
      fmt::format("{}, process {} of {} there", machine.host, place.local_rank, place.local_size),
      "places of ranks");
  const bool is_first = place.rank == 0;
  if (is_first) print(machine_text(machine, output) + gpu_text());
  if (is_first && place.size > 1) print(ranks_text(places, world.kind()));
  require<RecipeError>(arguments.threads >= 0 && arguments.threads <= 4096,
                       "--threads is {}, expected 1 to 4096 (0 = all cores)", arguments.threads);
  const Clock::time_point begin = Clock::now();
  const plan::HardwareProfile profile = measure(arguments, machine.cores, *job, place.local_size);
  if (!is_first) return ExitCode::done;
  print(peaks_text(profile));
  print(kernels_text(profile));
  if (place.size > 1) print(collectives_text(profile));
  if (output.has_parent_path()) create_directories_durably(output.parent_path());
  write_file_atomic(output, plan::to_json(profile));
  print(fmt::format("{}: {} kernels in {}\n", output.string(), profile.kernels.size(),
                    format_duration(seconds_since(begin))));
  return ExitCode::done;
}

}  // namespace

ExitCode doctor(const Measurement& arguments) {
  return train::run_as_rank([&](World& world) { return doctor_of_rank(arguments, world); });
}

}  // namespace llmtrain::app
