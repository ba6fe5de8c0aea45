#pragma once
/// Whether the other processes of a job still run, where nobody waits for a message with a limit.

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// A file per rank in the run's directory, in which the rank writes a greater number every so
/// often, and which the rank before it reads: what stands still there stands still. It needs no
/// message, so a thread of its own does it whatever the rank is at.
class SignsOfLife {
 public:
  /// Collective. Where the next rank's file does not show here, as without a shared file system,
  /// that is noted in the log, and nobody is missed.
  SignsOfLife(const Peers& peers, const std::filesystem::path& directory);

  /// A failure to write is noted once.
  void give();
  /// Whether the next rank has given a sign since the last call; always where its file does not
  /// show.
  bool heard();
  /// To which this one listens.
  int next_rank() const { return next_; }

 private:
  std::filesystem::path file_of(int rank) const;
  std::string sign_of_next() const;

  std::filesystem::path directory_;
  int rank_, next_;
  std::string own_token_, next_token_;
  std::uint64_t signs_ = 0;
  std::string last_;
  bool is_heard_ = true;
  bool told_ = false;
};

}  // namespace llmtrain::train
