#include "lib/train/job.hpp"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

namespace llmtrain::train {

Job job_of(const std::function<const char*(const char*)>& environment, double now) {
  const auto text_of = [&](const char* name) -> std::string_view {
    const char* text = environment(name);
    return text == nullptr ? "" : text;
  };
  const auto number = [&](const char* name) -> std::optional<std::int64_t> {
    const std::string_view text = text_of(name);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size() && value >= 0;
    return whole ? std::optional(value) : std::nullopt;
  };
  Job job{.id = std::string(text_of("SLURM_JOB_ID"))};
  if (job.id.empty()) return job;
  job.restarts = number("SLURM_RESTART_COUNT").value_or(0);
  if (const auto end = number("SLURM_JOB_END_TIME")) {
    job.end_is_past = static_cast<double>(*end) <= now;
    if (!job.end_is_past) job.end = static_cast<double>(*end);
  }
  return job;
}

const Job& this_job() {
  static const Job job = job_of([](const char* name) { return std::getenv(name); }, unix_time());
  return job;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace llmtrain::train
