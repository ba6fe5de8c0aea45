// How jobs over TCP begin without all of their ranks, and end without some of them. Ranks are
// threads, or processes where one ends them.
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/comm/tcp/frames.hpp"
#include "tests/support/tcp_job.hpp"

using namespace llmtrain;
using testing::in_threads;
using testing::tcp_job;

namespace {

/// The errors of ranks that try to meet, after `change` of what each knows; empty: it met them.
std::vector<std::string> meet(int ranks, int size,
                              const std::function<void(tcp::TcpJob&)>& change) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  const int fd = listener.release();
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  in_threads(ranks, [&](int rank) {
    tcp::TcpJob job = tcp_job(rank, size, port);
    if (rank == 0) job.listener = fd;
    job.start_limit = TimeLimit(5);
    change(job);
    try {
      const auto transport = tcp::make_transport(job);
      transport->leave();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return errors;
}

/// Says `bytes` to whoever listens, and what it answers until it closes.
std::string say(int port, std::span<const std::byte> bytes) {
  const auto end = tcp::Clock::now() + std::chrono::seconds(5);
  const tcp::Socket socket = tcp::connect_to("127.0.0.1", port, end);
  tcp::send_all(socket, bytes, end);
  std::string answer;
  try {
    for (std::byte next{};;) {
      tcp::recv_all(socket, {&next, 1}, end);
      answer += static_cast<char>(next);
    }
  } catch (const CommError&) {
  }
  return answer;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A job of processes: rank r is a child that runs `body(r, transport)` and exits with what that
/// returns. Their exit codes; -signal for those that were killed.
std::vector<int> in_processes(int size, const std::function<int(int, Transport&)>& body) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      int code = 99;
      try {
        tcp::TcpJob job = tcp_job(rank, size, port);
        job.end = nullptr;
        if (rank == 0) job.listener = listener.release();
        if (rank != 0) listener.close();
        const auto transport = tcp::make_transport(job);
        code = body(rank, *transport);
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        code = static_cast<int>(error.exit_code());
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  listener.close();
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

}  // namespace

TEST_CASE("processes of different builds are told apart by name, on both sides") {
  const auto errors = meet(3, 3, [](tcp::TcpJob& job) {
    if (job.rank == 2) job.build = "another";
  });
  const std::string text =
      "rank 2 on h1 runs another llmtrain than rank 0; start the same file everywhere";
  CHECK(errors[0] == text);
  CHECK(errors[1] == text);
  CHECK(errors[2] == text);
}

TEST_CASE("processes with another number of ranks, or the same rank, are named") {
  const auto sizes = meet(2, 2, [](tcp::TcpJob& job) {
    if (job.rank == 1) job.size = 3;
  });
  CHECK(sizes[0].find("rank 1 on h0 was started as one of 3 ranks, and rank 0 as one of 2") == 0);
  CHECK(sizes[1] == sizes[0]);

  const auto twice = meet(3, 3, [](tcp::TcpJob& job) {
    if (job.rank == 2) job.rank = 1;
  });
  CHECK(twice[0].find("two processes say that they are rank 1, on h") == 0);
  CHECK(twice[1] == twice[0]);
  CHECK(twice[2] == twice[0]);
}

TEST_CASE("ranks that do not come are named to those who have") {
  const auto missing = meet(2, 4, [](tcp::TcpJob& job) { job.start_limit = TimeLimit(0.7); });
  CHECK(missing[0] == "ranks 2, 3 of 4 did not come to rank 0 on h0 within 0.7 s");
  CHECK(missing[1] == missing[0]);

  tcp::Socket closed = tcp::listen_at(0);
  tcp::TcpJob job = tcp_job(1, 2, tcp::port_of(closed));
  closed.close();
  job.start_limit = TimeLimit(0.3);
  try {
    tcp::make_transport(job);
    FAIL("it met somebody");
  } catch (const CommError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("rank 1 on h0 cannot join rank 0 at 127.0.0.1 port ") == 0);
    CHECK(text.find("Connection refused") != std::string::npos);
  }
}

TEST_CASE("a rank that comes late is waited for, and so is rank 0") {
  for (const int late : {0, 2}) {
    CAPTURE(late);
    const auto errors = meet(3, 3, [&](tcp::TcpJob& job) {
      if (job.rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    });
    for (const std::string& error : errors) CHECK(error.empty());
  }
}

TEST_CASE("a connection that is not llmtrain's is closed, and the job begins all the same") {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  const int fd = listener.release();
  std::string answer = "none yet";
  in_threads(3, [&](int rank) {
    if (rank == 2) {
      // One that says nothing, and one that is a browser.
      const tcp::Socket silent =
          tcp::connect_to("127.0.0.1", port, tcp::Clock::now() + std::chrono::seconds(5));
      answer = say(port, bytes_of("GET / HTTP/1.1\r\nUser-Agent: " + std::string(200, 'a')));
      tcp::make_transport(tcp_job(1, 2, port))->leave();
    } else if (rank == 0) {
      tcp::TcpJob job = tcp_job(0, 2, port);
      job.listener = fd;
      tcp::make_transport(job)->leave();
    }
  });
  CHECK(answer.empty());
}

TEST_CASE("a process of another version of the protocol is told so") {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  const int fd = listener.release();
  std::string error, answer;
  in_threads(2, [&](int rank) {
    if (rank == 1) {
      tcp::HelloBytes hello = tcp::format_hello({.version = 7, .rank = 3, .size = 4});
      answer = say(port, hello);
      return;
    }
    tcp::TcpJob job = tcp_job(0, 4, port);
    job.listener = fd;
    try {
      tcp::make_transport(job);
    } catch (const CommError& problem) {
      error = problem.what();
    }
  });
  CHECK(error ==
        "rank 3 speaks version 7 of the protocol and rank 0 version 1; start the same llmtrain "
        "everywhere");
  CHECK(answer.find(error) != std::string::npos);
}

TEST_CASE("who finds another program at the address of rank 0 says so") {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::string error;
  in_threads(2, [&](int rank) {
    if (rank == 0) {
      tcp::Socket guest;
      while (!guest.is_open()) guest = tcp::accept_from(listener);
      tcp::send_all(guest, bytes_of("220 mail.example ESMTP\r\n"),
                    tcp::Clock::now() + std::chrono::seconds(5));
      return;
    }
    tcp::TcpJob job = tcp_job(1, 2, port);
    job.start_limit = TimeLimit(3);
    try {
      tcp::make_transport(job);
    } catch (const CommError& problem) {
      error = problem.what();
    }
  });
  CHECK(error.find("what listens there is no llmtrain") != std::string::npos);
}

TEST_CASE("a port that another process has is named") {
  const tcp::Socket taken = tcp::listen_at(0);
  tcp::TcpJob job = tcp_job(0, 2, tcp::port_of(taken));
  job.listener = std::nullopt;
  CHECK_THROWS_WITH_AS(tcp::make_transport(job), doctest::Contains("Address already in use"),
                       CommError);
}

TEST_CASE("a rank that is killed ends the others with its name, whomever they wait for") {
  const auto codes = in_processes(4, [](int rank, Transport& t) {
    std::byte byte{};
    if (rank == 2) ::raise(SIGKILL);
    // 0 and 1 wait for one another, 3 for the one that is killed.
    const int from = rank == 3 ? 2 : 1 - rank;
    try {
      t.wait(std::vector{t.recv(from, 0, {&byte, 1})}, TimeLimit(30));
    } catch (const CommError& error) {
      return std::string(error.what()) == "rank 2 on h1 ended" ? 6 : 98;
    }
    return 0;
  });
  CHECK(codes == std::vector{6, 6, -SIGKILL, 6});
}

TEST_CASE("the end of a rank is noticed where rank 0 stands still and cannot tell of it") {
  auto* const first = static_cast<std::atomic<pid_t>*>(::mmap(nullptr, sizeof(std::atomic<pid_t>),
                                                              PROT_READ | PROT_WRITE,
                                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto codes = in_processes(3, [&](int rank, Transport& t) {
    if (rank == 0) *first = ::getpid();
    if (rank == 0) ::raise(SIGSTOP);
    if (rank == 2) ::_exit(6);
    std::byte byte{};
    int code = 0;
    try {
      t.wait(std::vector{t.recv(0, 0, {&byte, 1})}, TimeLimit(20));
    } catch (const CommError& error) {
      code = std::string(error.what()) == "rank 2 on h1 ended" ? 6 : 98;
    }
    ::kill(*first, SIGKILL);
    return code;
  });
  CHECK(codes == std::vector{-SIGKILL, 6, 6});
}

TEST_CASE("a rank that computes ends soon after another has") {
  const auto begin = tcp::Clock::now();
  const auto codes = in_processes(3, [](int rank, Transport&) {
    if (rank == 1) ::raise(SIGKILL);
    ::sleep(50);  // and calls nothing
    return 0;
  });
  CHECK(codes == std::vector{6, -SIGKILL, 6});
  CHECK(tcp::Clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("a rank that aborts ends all with its exit code at once, even those that compute") {
  for (const int first : {0, 2}) {
    CAPTURE(first);
    const auto begin = tcp::Clock::now();
    const auto codes = in_processes(4, [&](int rank, Transport& t) {
      std::byte byte{};
      if (rank == first) t.abort(5);
      if (rank == 1) ::sleep(50);
      t.wait(std::vector{t.recv(first, 0, {&byte, 1})}, TimeLimit(50));
      return 0;
    });
    CHECK(codes == std::vector{5, 5, 5, 5});
    CHECK(tcp::Clock::now() - begin < std::chrono::seconds(8));
  }
}

TEST_CASE("a rank that ends while others leave is missed by them") {
  const auto codes = in_processes(3, [](int rank, Transport& t) {
    if (rank == 1) ::raise(SIGKILL);
    t.leave();
    return 0;
  });
  CHECK(codes == std::vector{6, -SIGKILL, 6});
}
