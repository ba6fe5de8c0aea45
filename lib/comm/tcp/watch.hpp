#pragma once
/// The end of a job: that of a process which others must not wait for, and the one that all agree
/// on.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/tcp/frames.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain::tcp {

/// A thread that listens to the connections between rank 0 and the others, on which nothing else is
/// said. So a rank that computes ends, too, when another has: rank 0 sees that a connection is
/// closed and tells all.
class Watch {
 public:
  /// What ends this process.
  using End = std::function<void(int code)>;
  /// `control`: as in Meeting; `names`: of the ranks, for messages.
  Watch(int rank, std::vector<Socket> control, std::vector<std::string> names, End end);
  /// Says nothing to the others, who see that the connection is closed.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// CommError when a rank is known to have ended.
  void check() const {
    if (failed_.load(std::memory_order_acquire)) throw_problem();
  }
  /// CommError: the connection of messages with `rank` is closed. If the reason arrives meanwhile,
  /// it comes first: the process may end here with the code of another's.
  [[noreturn]] void explain(int rank);
  /// Collective: returns when all have called it. CommError when one has ended instead.
  void leave();
  /// Tells all to end with `code`, and returns when they have been told.
  void abort(int code);

 private:
  void serve();
  /// What one of `control` has for us; false when it is closed.
  bool read(std::size_t peer);
  void hear(std::size_t peer, const Word& word);
  void lose(int rank);
  void note_leaving(int rank);
  void send(std::size_t peer, const Word& word);
  void send_to_all(const Word& word);
  [[noreturn]] void throw_problem() const;

  int rank_;
  std::vector<Socket> control_;
  std::vector<std::string> names_;
  End end_;
  struct Input {
    std::array<std::byte, kWordBytes> bytes{};
    std::size_t got = 0;
    bool closed = false;
  };
  std::vector<Input> inputs_;  // of the thread
  Socket wake_;
  std::mutex sending_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::string problem_;
  Clock::time_point failed_at_{};
  std::vector<bool> leaving_;
  bool left_ = false;
  bool stop_ = false;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

}  // namespace llmtrain::tcp
