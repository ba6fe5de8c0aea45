#pragma once
/// Messages over TCP, for processes that no MPI connects.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lib/comm/job_place.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain::tcp {

/// How long the processes of a job wait for the last of them.
inline constexpr TimeLimit kStartLimit{120};

/// What a process knows of its job.
struct TcpJob {
  int rank = 0;
  int size = 1;
  /// Among those of this machine; a size of 0: found by the names of the machines.
  int local_rank = 0;
  int local_size = 0;
  /// Where rank 0 takes connections.
  Rendezvous meeting;
  /// The same in all processes that fit each other: the hash of the build's interfaces.
  std::string build;
  /// This machine, for messages.
  std::string host;

  TimeLimit start_limit = kStartLimit;
  /// For tests: the descriptor of rank 0's listener, which it owns then, and what ends a process.
  std::optional<int> listener = {};
  std::function<void(int code)> end = {};
};

/// Collective over the job: every pair of processes is connected. A rank has one connection with
/// each other one, and one more with rank 0, which tells of ranks that have ended. CommError,
/// naming ranks, where some do not come within the limit, or do not fit each other. Nothing is
/// encrypted, and who knows the address can take the place of a rank that has not come: for
/// networks that are trusted.
std::unique_ptr<Transport> make_transport(const TcpJob& job);

}  // namespace llmtrain::tcp
