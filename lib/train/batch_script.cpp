#include "lib/train/batch_script.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "lib/base/require.hpp"
#include "lib/base/shell_word.hpp"

namespace llmtrain::train {

namespace {

// As the shell reads it.
std::string executable(const SlurmSection& slurm, const std::filesystem::path& self) {
  if (slurm.executable()) return shell_word(*slurm.executable());
  // So Linux names a file that was removed, or replaced, since the process was started.
  constexpr std::string_view kGone = " (deleted)";
  if (self.string().ends_with(kGone) && !std::filesystem::exists(self)) {
    const std::string was = self.string().substr(0, self.string().size() - kGone.size());
    throw recipe::RefusedValue(
        slurm.executable,
        fmt::format("is null, and {} was replaced or removed while it made this script", was),
        "run it again, or name the file");
  }
  require<RecipeError>(!self.empty(),
                       "/proc/self/exe does not say which file this program is; "
                       "name it in slurm.executable");
  return shell_word(self.string());
}

// Slurm takes nearly any name, but %x of slurm.log makes a file of it.
std::string job_name(std::string name) {
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return name;
}

/// Lines "#SBATCH ...".
class Directives {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += "#SBATCH " + fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// With the command that makes it again.
std::string opening(std::string arguments) {
  std::ranges::replace(arguments, '\n', ' ');
  return fmt::format("#!/usr/bin/env bash\n# llmtrain slurm script {}\n", arguments);
}

// What both jobs ask for.
void add_common(const SlurmSection& slurm, Directives& lines) {
  if (slurm.cpus_per_task()) lines.add("--cpus-per-task={}", slurm.cpus_per_task()->value);
  if (slurm.memory_per_node()) {
    lines.add("--mem={}M", (slurm.memory_per_node()->value + (1 << 20) - 1) >> 20);
  }
  if (slurm.time()) lines.add("--time={}", slurm_time(slurm.time()->seconds));
  if (slurm.partition()) lines.add("--partition={}", *slurm.partition());
  if (slurm.account()) lines.add("--account={}", *slurm.account());
  if (slurm.qos()) lines.add("--qos={}", *slurm.qos());
  for (const std::string& line : slurm.directives()) lines.add("{}", line);
  lines.add("--requeue");
  lines.add("--open-mode=append");
}

std::string setup_lines(const SlurmSection& slurm) {
  std::string text;
  for (const std::string& line : slurm.setup()) text += line + "\n";
  return text.empty() ? "" : text + "\n";
}

// What to do with the exit code of what was started. Requeued jobs keep their number; Slurm ends
// this script as soon as it has taken the request.
std::string after_the_end(std::uint64_t max_requeues) {
  return fmt::format(R"sh(if [ "$code" = 75 ]; then
  if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {0} ]; then
    echo "stopped and saved, but queued again {0} times before (slurm.max_requeues): submit it again"
  elif scontrol requeue "$SLURM_JOB_ID"; then
    sleep 60
  else
    echo "stopped and saved, but this cluster queues no job again: submit it again"
  fi
fi
)sh",
                     max_requeues);
}

std::string lost_processes(double wait_seconds) {
  const double seconds = std::ceil(wait_seconds);
  if (seconds == 0) return "";
  return fmt::format(
      R"sh(# Processes were lost. If a machine has failed, Slurm will notice, end this script and queue the job again.
if [ "$code" = 6 ] || [ "$code" -gt 128 ]; then
  echo "exit code $code: waiting {0:.0f} s for Slurm to find a failed machine (slurm.node_failure_wait)"
  sleep {0:.0f}
fi
)sh",
      seconds);
}

}  // namespace

std::string slurm_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  constexpr std::int64_t kMinute = 60, kHour = 3600, kDay = 86'400;
  const std::string days = whole < kDay ? "" : fmt::format("{}-", whole / kDay);
  return fmt::format("{}{:02}:{:02}:{:02}", days, whole % kDay / kHour, whole % kHour / kMinute,
                     whole % kMinute);
}

void enter_job(Recipe& recipe) {
  const SlurmSection& slurm = recipe.slurm;
  const DeviceChoice device = recipe.run.device();
  if (device == DeviceChoice::cpu && slurm.gpus_per_node()) {
    throw recipe::RefusedValue(slurm.gpus_per_node, "asks for GPUs, and run.device is cpu",
                               "leave it out, or choose run.device: cuda");
  }
  if (device == DeviceChoice::cuda && !slurm.gpus_per_node()) {
    throw recipe::RefusedValue(slurm.gpus_per_node, "missing: run.device is cuda",
                               "say how many GPUs each machine has");
  }
  try {
    recipe.enter({.size = slurm.tasks(), .local_size = slurm.tasks_on_node()});
  } catch (const RecipeError& error) {
    throw recipe::RefusedValue(
        slurm.nodes, fmt::format("{} machines x {} tasks are {} ranks: {}", slurm.nodes().value,
                                 slurm.tasks_on_node(), slurm.tasks(), error.what()));
  }
}

std::string training_script(const Recipe& recipe, const BatchScript& script) {
  const SlurmSection& slurm = recipe.slurm;
  Directives lines;
  lines.add("--job-name={}", job_name(script.name));
  lines.add("--output={}", slurm.log());
  lines.add("--nodes={}", slurm.nodes().value);
  lines.add("--ntasks-per-node={}", slurm.tasks_on_node());
  if (slurm.gpus_per_node()) lines.add("--gres=gpu:{}", slurm.gpus_per_node()->value);
  add_common(slurm, lines);
  lines.add("--signal=USR1@{:.0f}", std::ceil(slurm.signal_lead().seconds));
  std::string text =
      opening(script.arguments) +
      fmt::format(
          "# {} ranks. To be submitted from the directory that the recipe's paths start at.\n"
          "# --signal has no B:, so every task gets it, not this script.\n",
          slurm.tasks());
  text += lines.take() + "\n" + setup_lines(slurm) + "set -u\n";
  text += fmt::format(
      R"sh(# An error ends all tasks by itself, after the first has said what it is; the time is for those that hang.
start() {{
  srun --mpi={} --kill-on-bad-exit=0 --wait=60 {}{} "$@"
}}
# When the job's time is over, and how often it was started before: in the environment either may be that of a job
# that has submitted this one, and Slurm before 23.02 sets no end.
if read -r end restarts < <(SLURM_TIME_FORMAT=standard squeue -h -j "$SLURM_JOB_ID" -O EndTime:32,RestartCnt:32) &&
  [ -n "$restarts" ]; then
  SLURM_JOB_END_TIME=$(date +%s -d "$end" 2>/dev/null)
  SLURM_RESTART_COUNT=$restarts
fi
export SLURM_JOB_END_TIME="${{SLURM_JOB_END_TIME:-}}" SLURM_RESTART_COUNT="${{SLURM_RESTART_COUNT:-0}}"

)sh",
      slurm.mpi(),
      slurm.cpus_per_task() ? fmt::format("--cpus-per-task={} ", slurm.cpus_per_task()->value) : "",
      executable(slurm, script.self));
  text += slurm.preflight() ? fmt::format("start doctor {0} && start run {0}\n", script.arguments)
                            : fmt::format("start run {}\n", script.arguments);
  text += "code=$?\n" + after_the_end(slurm.max_requeues()) +
          lost_processes(slurm.node_failure_wait().seconds) + "exit \"$code\"\n";
  return text;
}

std::string data_script(const Recipe& recipe, const BatchScript& script, int tasks) {
  const SlurmSection& slurm = recipe.slurm;
  Directives lines;
  lines.add("--job-name={}-data", job_name(script.name));
  lines.add("--output={}", slurm.log());
  lines.add("--array=0-{}", tasks - 1);
  lines.add("--ntasks=1");
  add_common(slurm, lines);
  return opening(fmt::format("{} --data-tasks {}", script.arguments, tasks)) +
         "# Each task makes its share of the token files.\n" + lines.take() + "\n" +
         setup_lines(slurm) + "set -u\n" +
         fmt::format("exec {} data prepare {} --slurm-array\n", executable(slurm, script.self),
                     script.arguments);
}

}  // namespace llmtrain::train
