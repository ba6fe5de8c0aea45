#pragma once
/// How the processes of a job that know one address find each other: all tell rank 0 who they are,
/// rank 0 tells them where the others are, and every pair connects.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/tcp/frames.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "lib/comm/tcp/tcp_transport.hpp"

namespace llmtrain::tcp {

/// Takes connections and reads who they are, many at a time: one that says nothing keeps nobody
/// waiting. Those that speak otherwise than llmtrain are dropped with a warning.
class Reception {
 public:
  /// A listener that outlives it.
  explicit Reception(const Socket& listener) : listener_(&listener) {}
  struct Guest {
    Socket socket;
    Hello hello;
  };
  /// The next that has said who it is, or none until `end`. CommError for a hello that makes no
  /// sense.
  std::optional<Guest> next(Clock::time_point end);

 private:
  struct Stranger {
    Socket socket;
    HelloBytes bytes{};
    std::size_t got = 0;
  };
  /// False when it is to be dropped.
  static bool listen_to(Stranger& stranger);

  const Socket* listener_;
  std::deque<Stranger> strangers_;
};

/// "rank 3 on node7".
std::string rank_text(int rank, const std::string& host);

/// A job in which everybody knows where everybody is.
struct Meeting {
  /// Rank 0: to every other rank, by rank; others: [0] to rank 0.
  std::vector<Socket> control;
  std::vector<RankAddress> ranks;
  /// Where this rank takes connections.
  Socket listener;
  /// What this rank calls rank 0's machine.
  std::string first_address;
};

/// Collective. CommError, which rank 0 tells to those that have come, for ranks that do not fit
/// each other or do not come in time.
Meeting meet(const TcpJob& job, Clock::time_point end);

/// Collective: connections for messages with all others, by rank. `check` may throw when the job is
/// known to have failed meanwhile.
std::vector<Socket> connect_all(const TcpJob& job, const Meeting& meeting, Clock::time_point end,
                                const std::function<void()>& check);

}  // namespace llmtrain::tcp
