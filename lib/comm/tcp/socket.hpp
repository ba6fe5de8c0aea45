#pragma once
/// Sockets of TCP, over IPv4 and IPv6: closed on exec, never a SIGPIPE, never blocking; whoever
/// waits does so until a point in time.

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace llmtrain::tcp {

using Clock = std::chrono::steady_clock;

/// Owns a descriptor. Move-only.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  /// Whose it is then.
  int release() { return std::exchange(fd_, -1); }
  void close();

 private:
  int fd_ = -1;
};

/// Takes connections at `port` of every address of this machine; 0: a port that is free. CommError,
/// with the reason, where it cannot.
Socket listen_at(int port);
int port_of(const Socket& listener);
/// The next connection that waits, or none.
Socket accept_from(const Socket& listener);

/// Tries all addresses of `host`, again and again until `end`: the other side may not have started.
/// Calls `between` from time to time, which may throw. CommError with the last reason.
Socket connect_to(const std::string& host, int port, Clock::time_point end,
                  const std::function<void()>& between = {});

/// All of it; CommError when the other side has closed, or time is over.
void send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point end);
void recv_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point end);
/// The other side has closed the connection and nothing is left to read.
bool has_ended(const Socket& socket);

/// The numeric address at the other end.
std::string peer_address(const Socket& socket);
/// "127.0.0.1" or "::1": this machine's, whoever says it.
bool is_loopback(const std::string& address);
std::string host_name();

/// Raises the limit of open files of this process where it can. CommError when it cannot.
void make_room_for_files(std::size_t files);

}  // namespace llmtrain::tcp
