#pragma once
/// A check of a checkpoint beside what its checkers do meanwhile: loading it, as a rule.

#include <cstdint>
#include <future>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/checkpoint/verify.hpp"
#include "lib/comm/communicator.hpp"

namespace llmtrain::checkpoint {

class CheckpointStore;

/// All `checkers` share the files; a thread of each reads its own, and sends no message. One that
/// goes before it was waited for gives the check up.
class SharedCheck {
 public:
  /// Of the checkpoint of `step` in `store`, which both outlive it. What this checker reads goes
  /// through `handover`, if there is one, which outlives it, too. Where no thread can be started
  /// that is closed, and wait() does the work.
  SharedCheck(const CheckpointStore& store, std::uint64_t step, VerifyLevel level,
              Communicator& checkers, Handover* handover = nullptr);
  ~SharedCheck();
  SharedCheck(const SharedCheck&) = delete;
  SharedCheck& operator=(const SharedCheck&) = delete;

  /// What is wrong with the checkpoint, as all have found; to be called once. Collective. Stopped,
  /// on whoever is asked to stop.
  std::vector<Problem> wait();

 private:
  Communicator* checkers_;
  Handover* handover_;
  std::stop_source stop_;
  std::future<std::string> mine_;  // last: it is waited for before what it uses goes
};

}  // namespace llmtrain::checkpoint
