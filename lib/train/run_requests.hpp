#pragma once
/// What asks a run to save or to stop, between two of its steps: signals, the end of its job's
/// time, and files that people put into its directory. All ranks hear of it at the same step.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "lib/recipe/quantity.hpp"
#include "lib/train/checkpoint_section.hpp"
#include "lib/train/job.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

struct Request {
  enum class Kind : std::uint8_t { none, save, control_stop, output, deadline, signal };
  Kind kind = Kind::none;
  int signal = 0;

  bool stops() const { return kind > Kind::save; }
  /// "signal 15", "the end of job 17's time, in 12 s", "control/stop".
  std::string text;
};

/// When a run has to begin to save so that it has ended before its job does.
class Deadline {
 public:
  /// `margin` is resilience.exit_margin.
  Deadline(const Job& job, recipe::Auto<recipe::Duration> margin)
      : end_(job.end), margin_(margin) {}

  void note_step(double seconds) { longest_step_ = std::max(longest_step_, seconds); }
  /// Until note_save() knows better: a save takes as long as a rank's `bytes` do on a shared disk
  /// that is busy. At most a quarter of the time that is left `now` goes to the margin for that.
  void expect_save(std::uint64_t bytes, double now);
  /// The last save is durable: how long a local one takes tells nothing of it.
  void note_save(Tier tier, double seconds) {
    if (tier != Tier::durable) return;
    longest_save_ = std::max(std::exchange(save_is_guess_, false) ? 0 : longest_save_, seconds);
  }
  /// Seconds before the end.
  double margin() const {
    if (margin_.value) return margin_.value->seconds;
    return kLeast + 2 * (longest_step_ + longest_save_);
  }
  /// In seconds since 1970, as the run is known so far; nothing without an end.
  std::optional<double> begin() const { return end_ ? std::optional(*end_ - margin()) : end_; }
  bool is_over(double now) const { return end_ && now >= *begin(); }
  std::optional<double> end() const { return end_; }

 private:
  static constexpr double kLeast = 10;
  std::optional<double> end_;
  recipe::Auto<recipe::Duration> margin_;
  double longest_step_ = 0, longest_save_ = 0;
  bool save_is_guess_ = true;
};

class RunRequests {
 public:
  /// Looks for `directory`/control/save and control/stop, on rank 0; left-overs of an earlier start
  /// are removed.
  RunRequests(const Peers& peers, std::filesystem::path directory, const Deadline& deadline);

  /// On rank 0: from now on what is done before the first step ends where the time does, too.
  void stop_before_steps() const;
  /// Collective. The most urgent request of any rank. A file that asks is removed; one that cannot
  /// be is said once, and asks once, until it is another one or written again.
  Request poll();
  /// Whether this rank hears something that stops the run, of which the next poll() tells all.
  bool hears_stop();
  Deadline& deadline() { return deadline_; }
  /// On rank 0: metrics cannot be written any more.
  void stop_for_output() { output_fails_ = true; }

 private:
  struct Heard {
    Request::Kind kind = Request::Kind::none;
    int signal = 0;
  };
  /// This rank's.
  Heard listen();
  /// A name in control/, and what tells the file that was heeded there from a later one.
  struct ControlFile {
    const char* name;
    std::uint64_t inode = 0;
    std::int64_t seconds = 0, nanoseconds = 0;  // of its last change
    bool warned = false;

    bool operator==(const ControlFile&) const = default;
  };
  bool take(ControlFile& file);
  /// For files: a look at a shared disk may take as long as a small step.
  bool is_time_to_look();
  /// It is there, and was not heeded before.
  bool is_new(const ControlFile& file) const;

  const Peers* peers_;
  std::filesystem::path control_;
  ControlFile stop_{"stop"}, save_{"save"};
  Deadline deadline_;
  bool output_fails_ = false;
  std::chrono::steady_clock::time_point looked_{};  // for files
};

}  // namespace llmtrain::train
