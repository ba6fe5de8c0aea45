#include "lib/comm/tcp/socket.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "lib/base/require.hpp"
#include "lib/comm/tcp/frames.hpp"

namespace llmtrain::tcp {

namespace {

std::string reason() { return std::strerror(errno); }

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

/// A machine that is gone without a word is found after about 45 s, where nothing is on its way. (A
/// limit on what is on its way would end a connection whose receiver computes for as long.)
void prepare(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

/// Milliseconds for poll, at most `largest`.
int poll_time(Clock::time_point end, int largest) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, largest));
}

bool is_ready(int fd, short events, Clock::time_point end) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return ::poll(&entry, 1, poll_time(end, 1000)) > 0;
}

Socket listen_with(int family, int port) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  // A port that the last run has just left can be had again.
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in6 six{};
  sockaddr_in four{};
  const auto network_port = htons(static_cast<std::uint16_t>(port));
  six.sin6_family = AF_INET6;
  six.sin6_port = network_port;
  four.sin_family = AF_INET;
  four.sin_port = network_port;
  if (family == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  const auto* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six)
                                           : reinterpret_cast<const sockaddr*>(&four);
  const socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
  if (::bind(socket.fd(), address, size) != 0 || ::listen(socket.fd(), kLargestJob) != 0) {
    const int why = errno;
    socket.close();
    errno = why;
  }
  return socket;
}

/// A port without a listener may be given to the very socket that looks for it, which then answers
/// itself.
bool is_itself(int fd) {
  sockaddr_storage mine{}, other{};
  socklen_t mine_size = sizeof mine, other_size = sizeof other;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &mine_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         mine_size == other_size && std::memcmp(&mine, &other, mine_size) == 0;
}

/// One try; closed, with errno, where it fails.
Socket try_address(const addrinfo& address, Clock::time_point end) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  int problem = 0;
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    problem = errno;
    if (problem == EINPROGRESS) {
      // An address that drops what is sent to it must not keep the others from their turn.
      const auto turn = std::min(end, Clock::now() + std::chrono::seconds(5));
      problem = ETIMEDOUT;
      while (Clock::now() < turn) {
        if (!is_ready(socket.fd(), POLLOUT, turn)) continue;
        socklen_t size = sizeof problem;
        ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size);
        break;
      }
    }
  }
  if (problem == 0 && is_itself(socket.fd())) problem = ECONNREFUSED;
  if (problem != 0) socket.close();
  errno = problem;
  return socket;
}

/// One round over the addresses of a name.
Socket try_host(const std::string& host, int port, Clock::time_point end, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  if (status != 0) {
    why = status == EAI_SYSTEM ? reason() : ::gai_strerror(status);
    return Socket();
  }
  for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
    Socket socket = try_address(*address, end);
    if (socket.is_open()) {
      prepare(socket.fd());
      return socket;
    }
    why = reason();
  }
  return Socket();
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Socket listen_at(int port) {
  // One of IPv6 takes both; a machine may have none.
  Socket socket = listen_with(AF_INET6, port);
  if (!socket.is_open() && errno != EADDRINUSE) socket = listen_with(AF_INET, port);
  require<CommError>(socket.is_open(), "this machine gives no port {} to take connections at: {}",
                     port, reason());
  return socket;
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  require<CommError>(
      ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0,
      "the system does not tell the port of a socket: {}", reason());
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) prepare(socket.fd());
  const bool full = !socket.is_open() && (errno == EMFILE || errno == ENFILE);
  require<CommError>(!full, "no connection more can be taken: {}; raise `ulimit -n`", reason());
  return socket;
}

Socket connect_to(const std::string& host, int port, Clock::time_point end,
                  const std::function<void()>& between) {
  std::string why = "no time was left";
  auto pause = std::chrono::milliseconds(20);
  while (Clock::now() < end) {
    Socket socket = try_host(host, port, end, why);
    if (socket.is_open()) return socket;
    if (between) between();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
  fail<CommError>("{}", why);
}

void send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      continue;
    }
    const bool again = errno == EAGAIN || errno == EINTR;
    require<CommError>(again, "the connection broke: {}", reason());
    require<CommError>(Clock::now() < end, "the other side takes nothing more");
    is_ready(socket.fd(), POLLOUT, end);
  }
}

void recv_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      continue;
    }
    require<CommError>(n != 0, "the other side closed the connection");
    const bool again = errno == EAGAIN || errno == EINTR;
    require<CommError>(again, "the connection broke: {}", reason());
    require<CommError>(Clock::now() < end, "the other side says nothing more");
    is_ready(socket.fd(), POLLIN, end);
  }
}

bool has_ended(const Socket& socket) {
  std::byte next{};
  const ssize_t n = ::recv(socket.fd(), &next, 1, MSG_PEEK);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, 128> text{};
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const bool known =
      ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      ::getnameinfo(generic, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  require<CommError>(known, "the connection ended at once");
  // An IPv4 address as a socket of IPv6 sees it; others may have no IPv6.
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view numeric = text.data();
  if (numeric.starts_with(kMapped) && numeric.find('.') != std::string_view::npos) {
    numeric.remove_prefix(kMapped.size());
  }
  return std::string(numeric);
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return std::string(name.data()).substr(0, kHostNameBytes);
}

void make_room_for_files(std::size_t files) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= files) return;
  require<CommError>(limit.rlim_max >= files,
                     "this process may have {} files open, and the connections of its job need {}; "
                     "raise the limit (ulimit -Hn)",
                     limit.rlim_max, files);
  limit.rlim_cur = files;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace llmtrain::tcp
