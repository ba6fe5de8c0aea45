#pragma once
/// Whether the other processes of a job still run, where nobody waits for a message with a limit.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/waits.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// A file per rank in the run's directory, in which the rank writes a greater number every so
/// often, and for whom it waits (Waits). The rank before it reads it: what stands still there
/// stands still; and whoever waits for the rank in vain. It needs no message, so a thread of its
/// own does it whatever the rank is at.
class SignsOfLife {
 public:
  /// Collective. Where the next rank's file does not show here, as without a shared file system,
  /// that is noted in the log, and nobody is missed.
  SignsOfLife(const Peers& peers, const std::filesystem::path& directory);
  ~SignsOfLife();
  SignsOfLife(const SignsOfLife&) = delete;
  SignsOfLife& operator=(const SignsOfLife&) = delete;

  /// A failure to write is noted once.
  void give();
  /// Whether the next rank has given a sign since the last call; always where its file does not
  /// show.
  bool heard();
  /// Reads the signs of those that this rank waits for in vain.
  void look_at_others();
  /// To which this one listens.
  int next_rank() const { return next_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Sign {
    Clock::time_point asked, changed;
    std::optional<std::string> text = {};  // once it was read
  };
  std::filesystem::path file_of(int rank) const;
  /// Empty where it is not of this start.
  std::string sign_of(int rank) const;
  /// As Waits::OfOthers; of what look_at_others() has read.
  std::optional<int> wait_of(int rank);

  std::filesystem::path directory_;
  Waits* waits_;
  int rank_, next_;
  std::vector<std::string> tokens_;  // by rank
  std::mutex mutex_;
  std::map<int, Sign> others_;  // whose waits were asked for, guarded by mutex_
  std::uint64_t signs_ = 0;
  std::string last_;
  bool is_heard_ = true;
  bool told_ = false;
};

}  // namespace llmtrain::train
