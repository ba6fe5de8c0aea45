#pragma once
/// For whom a process waits, and whom it names when no answer comes: a rank that waits for a third
/// one itself is not the one that is missing.

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>

#include "lib/comm/collective_log.hpp"
#include "lib/comm/open_messages.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain {

class Waits {
 public:
  /// For whom a rank waits; nothing of one that does not, or of which nobody knows it. Waits for
  /// nothing: who asks holds the transport.
  using OfOthers = std::function<std::optional<int>(int rank)>;
  /// What such a function says while it finds out.
  static constexpr int kNotKnownYet = -2;
  /// Any thread; empty: nothing is known. No call is under way when it returns.
  void know(OfOthers others);
  /// For whom this process has waited for a while. Any thread.
  std::optional<int> own() const;

  /// CommError, naming ranks that have not answered within `limit`; nothing where all have by now.
  /// While each of them waits for another one itself it lets them say for whom first, for some
  /// seconds.
  void fail_unanswered(OpenMessages& messages, TimeLimit limit, TimeLimit waited,
                       const CollectiveRecord& call);

 private:
  friend class Vigil;
  static constexpr int kNobody = -1;
  std::optional<int> of_other(int rank);

  std::atomic<int> own_{kNobody};
  std::mutex mutex_;
  OfOthers others_;
};

/// A wait of this process for other ranks. Where one has died, launchers tell the others to stop,
/// and end them a moment later: who it is know those who wait for it.
class Vigil {
 public:
  explicit Vigil(Waits& waits) : waits_(&waits) {}
  ~Vigil() { waits_->own_ = Waits::kNobody; }
  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  /// After a look in vain. What lasts is known to others (Waits::own). Once in a process that was
  /// told to stop and still has no answer a while later it says for whom it waits.
  void look(OpenMessages& messages, const CollectiveRecord& call);

 private:
  using Clock = std::chrono::steady_clock;
  Waits* waits_;
  Clock::time_point looked_ = Clock::now();
  std::optional<Clock::time_point> told_;
};

}  // namespace llmtrain
