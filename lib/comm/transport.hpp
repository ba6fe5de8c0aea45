#pragma once
/// Messages between the processes of a job, from and to host memory: what a library like MPI
/// provides, or sockets do, and all that collectives on the host are made of.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/job_place.hpp"

namespace llmtrain {

/// How long a process waits for another one.
using TimeLimit = std::chrono::duration<double>;
inline constexpr TimeLimit kDefaultPatience{600};

/// One thread at a time. CommError when the library fails or a message has another size than its
/// receiver expects.
class Transport {
 public:
  virtual ~Transport() = default;
  /// "mpi", "tcp".
  virtual std::string_view name() const = 0;
  virtual JobPlace place() const = 0;

  /// A message that was begun and is not known to be done.
  using Ticket = std::uint32_t;
  /// Neither waits. Messages from one rank to another with one tag arrive in the order in which
  /// they were sent, each in a recv of exactly its size. Buffers are the transport's until the
  /// ticket is done. Tags are below 32,768.
  virtual Ticket send(int to, int tag, std::span<const std::byte> data) = 0;
  virtual Ticket recv(int from, int tag, std::span<std::byte> data) = 0;
  /// True once, after which the ticket is forgotten.
  virtual bool is_done(Ticket ticket) = 0;
  /// Until all of them are done, which are then forgotten, or `limit` is over: the places in
  /// `tickets` of those that are not done then.
  virtual std::vector<std::size_t> wait(std::span<const Ticket> tickets, TimeLimit limit) = 0;
  /// After so many looks in vain lets others go on, perhaps until a message moves, for some
  /// milliseconds at most.
  virtual void rest(int looks) = 0;

  /// Collective: after it no message can be sent. A process that ends without it ends the job.
  virtual void leave() = 0;
  /// Ends all processes of the job at once.
  [[noreturn]] virtual void abort(int code) = 0;
};

}  // namespace llmtrain
