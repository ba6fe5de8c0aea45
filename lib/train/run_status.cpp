#include "lib/train/run_status.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>
#include <type_traits>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lib/base/activity.hpp"
#include "lib/base/ending.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/strict_json.hpp"
#include "lib/base/units.hpp"
#include "lib/base/utf8.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFile = "status.json";

// When a process began that has not ended (one nobody has waited for has), in the machine's ticks.
std::optional<std::int64_t> start_of(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // Behind the name, which may hold anything.
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string state, field;
  if (fields >> state; state == "Z" || state == "X") return std::nullopt;
  for (int i = 4; i < 22; ++i) fields >> field;
  std::int64_t start = 0;
  return fields >> start ? std::optional(start) : std::nullopt;
}

// JSON has no number for a loss that is none.
template <class T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value && std::isfinite(static_cast<double>(*value))) json[key] = *value;
}

template <class T>
void get(const Json& json, const char* key, std::optional<T>& value) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  if constexpr (std::is_integral_v<T>)
    value = integer_of<T>(*found);
  else
    value = found->get<T>();
}

// The new file is whole or not there. Not durable: after a loss of power nobody asks what ran.
void replace_file(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp-{}", ::getpid());
  std::filesystem::remove(temporary);
  File file = File::create_new(temporary);
  file.write(content);
  file.close();
  std::filesystem::rename(temporary, path);
}

// What a killed process has left of replace_file.
void remove_leftovers(const std::filesystem::path& directory) {
  const std::string beginning = fmt::format("{}.tmp-", kFile);
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;  // it is in nobody's way
    if (at->path().filename().string().starts_with(beginning)) {
      std::filesystem::remove(at->path(), ignored);
    }
  }
}

// Of whatever numbers a file has.
std::string time_text(double seconds) { return format_duration(std::clamp(seconds, 0.0, 1e12)); }
std::string ago(double seconds) { return time_text(seconds) + " ago"; }

// A message's later lines are indented: none looks like one of ours.
std::string message_text(std::string_view message) {
  std::string text;
  for (std::size_t end; (end = message.find('\n')) != message.npos;
       message.remove_prefix(end + 1)) {
    text += escape_controls(message.substr(0, end)) + "\n  ";
  }
  return text + escape_controls(message);
}

}  // namespace

std::string to_json(const RunStatus& status) {
  Json json;
  json["phase"] = status.phase;
  json["step"] = status.step;
  json["total_steps"] = status.total_steps;
  put(json, "tokens", status.tokens);
  put(json, "loss", status.loss);
  put(json, "tokens_per_second", status.tokens_per_second);
  put(json, "step_seconds", status.step_seconds);
  put(json, "eta_seconds", status.eta_seconds);
  put(json, "checkpoint_step", status.checkpoint_step);
  put(json, "checkpoint_time", status.checkpoint_time);
  json["host"] = status.host;
  json["pid"] = status.pid;
  json["pid_start"] = status.pid_start;
  json["ranks"] = status.ranks;
  json["job"] = status.job;
  json["starts"] = status.starts;
  json["lost_steps"] = status.lost_steps;
  json["started"] = status.started;
  json["updated"] = status.updated;
  put(json, "exit_code", status.exit_code);
  json["message"] = status.message;
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";  // safe on a terminal
}

RunStatus parse_status(std::string_view content, std::string_view name) {
  try {
    const Json json = Json::parse(content, JsonDepth{name, "it is none of llmtrain's"});
    RunStatus status;
    status.phase = json.at("phase").get<std::string>();
    status.step = integer_of<std::int64_t>(json.at("step"));
    status.total_steps = integer_of<std::int64_t>(json.at("total_steps"));
    get(json, "tokens", status.tokens);
    get(json, "loss", status.loss);
    get(json, "tokens_per_second", status.tokens_per_second);
    get(json, "step_seconds", status.step_seconds);
    get(json, "eta_seconds", status.eta_seconds);
    get(json, "checkpoint_step", status.checkpoint_step);
    get(json, "checkpoint_time", status.checkpoint_time);
    status.host = json.at("host").get<std::string>();
    status.pid = integer_of<std::int64_t>(json.at("pid"));
    status.pid_start = integer_of<std::int64_t>(json.at("pid_start"));
    status.ranks = integer_of<std::int64_t>(json.at("ranks"));
    status.job = json.at("job").get<std::string>();
    status.starts = integer_of<std::int64_t>(json.at("starts"));
    status.lost_steps = integer_of<std::int64_t>(json.at("lost_steps"));
    status.started = json.at("started").get<double>();
    status.updated = json.at("updated").get<double>();
    get(json, "exit_code", status.exit_code);
    status.message = json.at("message").get<std::string>();
    return status;
  } catch (const Json::exception& error) {
    fail<DataError>("{}: no status of a run: {}", name, escape_controls(error.what()));
  }
}

std::optional<RunStatus> read_status(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  std::error_code error;
  const bool is_there = std::filesystem::exists(path, error);
  require<DataError>(!error, "{}: cannot be read: {}", path.string(), error.message());
  if (!is_there) return std::nullopt;
  return parse_status(read_file(path, 1 << 20), path.string());
}

RunStatus status_of_run(const std::filesystem::path& directory) {
  constexpr std::string_view kRemedy = "give the run.output_dir of a run";
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(directory, error);
  require<RecipeError>(kind.type() != std::filesystem::file_type::not_found,
                       "{}: there is no such directory; {}", directory.string(), kRemedy);
  require<RecipeError>(!error, "{}: cannot be looked at: {}; {} that you may read",
                       directory.string(), error.message(), kRemedy);
  require<RecipeError>(std::filesystem::is_directory(kind), "{}: not a directory; {}",
                       directory.string(), kRemedy);
  std::optional<RunStatus> status;
  try {
    status = read_status(directory);
  } catch (const DataError& problem) {
    fail<DataError>(
        "{}; {} that you may read, or delete the file if it is damaged: a run that lives writes it "
        "again",
        problem.what(), kRemedy);
  }
  require<RecipeError>(status.has_value(),
                       "{}: no run, or none that has begun (it has no status.json); {}",
                       directory.string(), kRemedy);
  return *status;
}

Life life_of(const RunStatus& status, double now) {
  if (status.has_ended()) return Life::ended;
  const bool wrote = now - status.updated < kSilenceSeconds;
  if (status.host != plan::machine_facts().host) return wrote ? Life::alive : Life::missing;
  if (start_of(status.pid) != status.pid_start) return Life::dead;
  return wrote ? Life::alive : Life::silent;
}

std::string describe(const RunStatus& status, double now) {
  std::string text = escape_controls(status.phase);
  if (status.total_steps > 0) {
    text += fmt::format(
        ", step {} of {} ({:.1f} %)", status.step, status.total_steps,
        100.0 * static_cast<double>(status.step) / static_cast<double>(status.total_steps));
  }
  if (status.loss) text += fmt::format(", loss {:.4f}", *status.loss);
  if (status.tokens_per_second) {
    text += fmt::format(", {} tokens/s", format_count(*status.tokens_per_second));
  }
  if (!status.has_ended() && status.step_seconds) {
    text += fmt::format(", {:.3g} s per step", *status.step_seconds);
  }
  if (!status.has_ended() && status.eta_seconds) {
    text += fmt::format(", {} to go", time_text(*status.eta_seconds));
  }
  const std::string who =
      fmt::format("process {} on {}{}{}", status.pid, escape_controls(status.host),
                  status.job.empty() ? "" : ", job " + escape_controls(status.job),
                  status.ranks > 1 ? fmt::format(", first of {} ranks", status.ranks) : "");
  const std::string wrote = ago(now - status.updated);
  switch (life_of(status, now)) {
    case Life::ended:
      text += fmt::format("\nended {} with exit code {}{}{}\n", wrote, *status.exit_code,
                          status.message.empty() ? "" : ": ", message_text(status.message));
      break;
    case Life::alive:
      text += fmt::format("\nalive: {}, started {}\n", who, ago(now - status.started));
      break;
    case Life::silent:
      text += fmt::format("\nsilent: {} is there, but wrote last {}\n", who, wrote);
      break;
    case Life::dead:
      text += fmt::format("\ndead: {} is not there any more, and wrote last {}\n", who, wrote);
      break;
    case Life::missing:
      text += fmt::format("\nmissing: {} wrote last {}; look there, or ask squeue\n", who, wrote);
      break;
  }
  text += status.checkpoint_step
              ? fmt::format("last checkpoint: step {}{}\n", *status.checkpoint_step,
                            status.checkpoint_time ? ", " + ago(now - *status.checkpoint_time) : "")
              : "no checkpoint yet\n";
  if (status.starts > 1) {
    text += fmt::format("{} starts, {} step{} made twice\n", status.starts, status.lost_steps,
                        status.lost_steps == 1 ? " was" : "s were");
  }
  return text;
}

StatusFile::~StatusFile() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  writer_.join();
}

void StatusFile::open(const std::filesystem::path& directory, const Start& process) {
  directory_ = directory;
  remove_leftovers(directory);
  try {
    if (const auto before = read_status(directory)) {
      last_step_ = status_.step = before->step;
      status_.checkpoint_step = last_checkpoint_ = before->checkpoint_step;
      status_.checkpoint_time = before->checkpoint_time;
      status_.starts = before->starts;
      status_.lost_steps = before->lost_steps;
    }
  } catch (const Error& error) {  // it is not synced: a loss of power may leave anything
    log::warning("{}; how many steps were lost before this start is not known", error.what());
  }
  status_.phase = "starting";
  status_.host = process.host;
  status_.pid = process.pid;
  status_.pid_start = start_of(process.pid).value_or(0);
  status_.ranks = process.ranks;
  status_.job = process.job;
  status_.started = process.time;
  write_now();
  writer_ = std::thread([this] { keep_writing(); });
}

void StatusFile::begin(std::optional<std::int64_t> step, std::int64_t starts,
                       std::int64_t lost_steps) {
  change([&](RunStatus& status) {
    if (status.checkpoint_step != step) status.checkpoint_time.reset();
    status.step = step.value_or(0);
    status.checkpoint_step = step;
    status.starts = starts;
    status.lost_steps = lost_steps;
  });
  write_now();  // the next start counts from it
}

ExitCode StatusFile::watch(const std::function<ExitCode()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const Ending ending = ending_of(error);
    end(ending.code == ExitCode::preempted ? "stopped" : "failed", ending.code, ending.text);
    throw;
  }
}

template <class Change>
void StatusFile::change(const Change& change) {
  const std::lock_guard lock(mutex_);
  change(status_);
  changed_ = true;
}

void StatusFile::enter(std::string_view phase) {
  activity::enter(phase);
  change([&](RunStatus& status) { status.phase = phase; });
}
void StatusFile::length(std::int64_t total_steps) {
  change([&](RunStatus& status) { status.total_steps = total_steps; });
}
void StatusFile::at_step(std::int64_t step) {
  activity::at_step(step);
  change([&](RunStatus& status) { status.step = step; });
}

void StatusFile::add(const StepRecord& record) {
  change([&](RunStatus& status) {
    const auto take = [&](std::string_view key, std::optional<double>& value) {
      if (const auto number = record.number(key)) value = number;
    };
    take(metric::kLoss, status.loss);
    take(metric::kTokensPerSecond, status.tokens_per_second);
    take(metric::kStepSeconds, status.step_seconds);
    take(metric::kEtaSeconds, status.eta_seconds);
    if (const auto tokens = record.number(metric::kTokens)) {
      status.tokens = static_cast<std::int64_t>(*tokens);
    }
  });
}

void StatusFile::saved(std::int64_t step) {
  change([&](RunStatus& status) {
    status.checkpoint_step = step;
    status.checkpoint_time = unix_time();
  });
}

void StatusFile::end(std::string_view phase, ExitCode code, std::string_view message) {
  if (!writer_.joinable()) return;
  change([&](RunStatus& status) {
    status.phase = phase;
    status.exit_code = static_cast<std::uint8_t>(code);
    status.message = message;
  });
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  writer_.join();
  write_now();
}

// A full disk ends the run where it saves, not here.
void StatusFile::write_now() {
  const std::lock_guard one_at_a_time(writing_);
  std::string content;
  {
    const std::lock_guard lock(mutex_);
    status_.updated = unix_time();
    content = to_json(status_);
    changed_ = false;
  }
  try {
    replace_file(directory_ / kFile, content);
    failed_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(failed_, true)) log::warning("status.json is not written: {}", error.what());
  }
}

void StatusFile::keep_writing() {
  using std::chrono::seconds;
  constexpr int kHeartbeat = 10;
  const activity::QuietThread telling;  // a run that stands still has a status, too
  int quiet = 0;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, seconds(1), [&] { return ends_; })) {
    if (!changed_ && ++quiet < kHeartbeat) continue;
    quiet = 0;
    lock.unlock();
    write_now();
    lock.lock();
  }
}

}  // namespace llmtrain::train
