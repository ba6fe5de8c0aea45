#include "lib/train/run_requests.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"

namespace llmtrain::train {

namespace {

std::string text_of(Request::Kind kind, int signal, const Deadline& deadline) {
  switch (kind) {
    case Request::Kind::none:
      break;
    case Request::Kind::save:
      return "control/save";
    case Request::Kind::control_stop:
      return "control/stop";
    case Request::Kind::output:
      return "metrics that cannot be written";
    case Request::Kind::deadline:
      return fmt::format("the end of its job's time, in {:.0f} s",
                         std::max(0.0, deadline.end().value_or(0) - unix_time()));
    case Request::Kind::signal:
      return fmt::format("signal {}", signal);
  }
  return "";
}

}  // namespace

void Deadline::expect_save(std::uint64_t bytes, double now) {
  constexpr double kBytesPerSecond = 100e6, kMostPart = 1.0 / 8;  // the margin counts it twice
  if (!end_ || !save_is_guess_) return;
  longest_save_ = std::min(static_cast<double>(bytes) / kBytesPerSecond,
                           std::max(0.0, kMostPart * (*end_ - now)));
}

RunRequests::RunRequests(const Peers& peers, std::filesystem::path directory,
                         const Deadline& deadline)
    : peers_(&peers), control_(std::move(directory) / "control"), deadline_(deadline) {
  if (!peers_->is_first()) return;
  take(save_);
  take(stop_);
}

bool RunRequests::take(ControlFile& file) {
  const std::filesystem::path path = control_ / file.name;
  struct stat facts {};
  std::error_code error;
  const bool is_there = ::lstat(path.c_str(), &facts) == 0;
  if (!is_there && errno == ENOENT) return false;
  if (is_there) {
    std::filesystem::remove(path, error);
  } else {
    error = std::error_code(errno, std::generic_category());
  }
  if (error && !std::exchange(file.warned, true)) {
    log::warning("{}: cannot be {}: {}{}", path.string(), is_there ? "removed" : "looked at",
                 error.message(), is_there ? "; it is not heeded again until it changes" : "");
  }
  if (!is_there) return false;
  const ControlFile now{file.name, facts.st_ino, facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec,
                        file.warned};
  return std::exchange(file, now) != now;
}

bool RunRequests::is_new(const ControlFile& file) const {
  struct stat facts {};
  if (::lstat((control_ / file.name).c_str(), &facts) != 0) return false;
  const ControlFile now{file.name, facts.st_ino, facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec,
                        file.warned};
  return file != now;
}

void RunRequests::stop_before_steps() const {
  if (const auto begin = deadline_.begin()) stop_from(*begin);
  stop_if_asked("starting");
}

RunRequests::Heard RunRequests::listen() {
  if (const int signal = stop_signal()) return {Request::Kind::signal, signal};
  if (!peers_->is_first()) return {};
  if (deadline_.is_over(unix_time())) return {Request::Kind::deadline};
  if (output_fails_) return {Request::Kind::output};
  if (!is_time_to_look()) return {};
  if (take(stop_)) return {Request::Kind::control_stop};
  if (take(save_)) return {Request::Kind::save};
  return {};
}

bool RunRequests::hears_stop() {
  if (stop_signal() != 0) return true;
  if (!peers_->is_first()) return false;
  if (deadline_.is_over(unix_time()) || output_fails_) return true;
  if (!is_time_to_look() || !is_new(stop_)) return false;
  looked_ = {};  // poll() shall look at once
  return true;
}

bool RunRequests::is_time_to_look() {
  constexpr std::chrono::milliseconds kPause{500};
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kPause) return false;
  looked_ = now;
  return true;
}

Request RunRequests::poll() {
  const auto heard = peers_->of_all(listen(), "requests");
  const auto most = std::ranges::max_element(heard, [](const Heard& a, const Heard& b) {
    return std::pair(a.kind, a.signal) < std::pair(b.kind, b.signal);
  });
  return {.kind = most->kind,
          .signal = most->signal,
          .text = text_of(most->kind, most->signal, deadline_)};
}

}  // namespace llmtrain::train
