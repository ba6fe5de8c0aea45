#pragma once
/// A job whose processes are threads of this one, connected by TCP on this machine.

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lib/comm/tcp/socket.hpp"
#include "lib/comm/tcp/tcp_transport.hpp"

namespace llmtrain::testing {

/// What a rank knows of a job of `size` whose rank 0 has `listener`.
inline tcp::TcpJob tcp_job(int rank, int size, int port) {
  return {.rank = rank,
          .size = size,
          .meeting = {"127.0.0.1", port},
          .build = "tests",
          .host = "h" + std::to_string(rank / 2),
          .start_limit = TimeLimit(20),
          .end = [](int) {}};
}

/// Runs `body(rank)` in a thread for each rank; rethrows what the first of them threw.
inline void in_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Runs `body(transport)` as each rank of a job of `size`. Connections live until all have ended:
/// one that fails leaves the others to themselves.
inline void run_tcp_job(int size, const std::function<void(Transport&)>& body) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::vector<std::unique_ptr<Transport>> transports(static_cast<std::size_t>(size));
  const int fd = listener.release();
  in_threads(size, [&](int rank) {
    tcp::TcpJob job = tcp_job(rank, size, port);
    if (rank == 0) job.listener = fd;
    auto& transport = transports[static_cast<std::size_t>(rank)];
    transport = tcp::make_transport(job);
    body(*transport);
  });
}

}  // namespace llmtrain::testing
