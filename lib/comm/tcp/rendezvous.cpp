#include "lib/comm/tcp/rendezvous.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::tcp {

namespace {

using std::chrono::milliseconds;

Hello hello_of(const TcpJob& job, Hello::Purpose purpose, int port) {
  return {.rank = job.rank,
          .size = job.size,
          .purpose = purpose,
          .port = port,
          .build = job.build,
          .host = job.host};
}

/// CommError, naming both, unless they can work together.
void check_fits(const TcpJob& job, const Hello& other) {
  require<CommError>(other.version == kProtocolVersion,
                     "rank {} speaks version {} of the protocol and rank {} version {}; start the "
                     "same llmtrain everywhere",
                     other.rank, other.version, job.rank, kProtocolVersion);
  const std::string who = rank_text(other.rank, other.host);
  require<CommError>(other.build == job.build,
                     "{} runs another llmtrain than rank {}; start the same file everywhere", who,
                     job.rank);
  require<CommError>(other.size == job.size,
                     "{} was started as one of {} ranks, and rank {} as one of {}; give all the "
                     "same WORLD_SIZE, and every job a MASTER_PORT of its own",
                     who, other.size, job.rank, job.size);
  require<CommError>(other.rank < job.size, "{} says that it is one of {} ranks", who, job.size);
}

[[noreturn]] void refuse_twice(int rank, const std::string& one, const std::string& other) {
  fail<CommError>(
      "two processes say that they are rank {}, on {} and on {}; give each a RANK of its own, and "
      "every job a MASTER_PORT of its own",
      rank, one, other);
}

/// What rank 0 does.
class Host {
 public:
  Host(const TcpJob& job, const Socket& listener)
      : job_(&job), reception_(listener), guests_(static_cast<std::size_t>(job.size)) {}

  void gather(Clock::time_point end) {
    for (int missing = job_->size - 1; missing > 0;) {
      const auto slice = std::min(end, Clock::now() + milliseconds(500));
      if (auto guest = reception_.next(slice)) {
        // Kept even where it does not fit: it is to be told why.
        const Hello hello = guest->hello;
        latest_ = std::move(guest->socket);
        check_fits(*job_, hello);
        auto& place = guests_[static_cast<std::size_t>(hello.rank)];
        if (hello.rank == 0) refuse_twice(0, job_->host, hello.host);
        if (place) refuse_twice(hello.rank, place->hello.host, hello.host);
        place = Reception::Guest{std::move(latest_), hello};
        --missing;
      } else {
        look_after_guests();
        if (Clock::now() >= end) refuse_missing();
      }
    }
  }
  void answer(const Answer& answer) const {
    const std::vector<std::byte> bytes = format_answer(answer);
    for (const auto& guest : guests_) {
      if (guest) tell(guest->socket, bytes);
    }
  }
  /// Tells those who are here, and those who are on their way, why there is no job.
  void refuse(const std::string& why) {
    answer({.refusal = why});
    const std::vector<std::byte> bytes = format_answer({.refusal = why});
    if (latest_.is_open()) tell(latest_, bytes);
    std::ptrdiff_t expected =
        std::count_if(guests_.begin() + 1, guests_.end(), [](const auto& g) { return !g; });
    if (latest_.is_open()) --expected;
    const auto end = Clock::now() + std::chrono::seconds(1);
    try {
      for (; expected > 0; --expected) {
        const auto guest = reception_.next(end);
        if (!guest) return;
        tell(guest->socket, bytes);
      }
    } catch (const CommError&) {
      // Words that make no sense need no answer.
    }
  }
  std::vector<RankAddress> addresses(int own_port) const {
    std::vector<RankAddress> ranks{{.address = "", .port = own_port, .host = job_->host}};
    for (std::size_t rank = 1; rank < guests_.size(); ++rank) {
      const std::string address = peer_address(guests_[rank]->socket);
      // A rank on this machine may have come by an address that leads others to themselves.
      ranks.push_back({.address = is_loopback(address) ? "" : address,
                       .port = guests_[rank]->hello.port,
                       .host = guests_[rank]->hello.host});
    }
    return ranks;
  }
  std::vector<Socket> take_sockets() {
    std::vector<Socket> sockets;
    for (auto& guest : guests_) sockets.push_back(guest ? std::move(guest->socket) : Socket());
    return sockets;
  }

 private:
  static void tell(const Socket& socket, std::span<const std::byte> bytes) {
    try {
      send_all(socket, bytes, Clock::now() + std::chrono::seconds(5));
    } catch (const CommError&) {
      // It has ended, which is found out when it is to do something.
    }
  }
  void look_after_guests() const {
    for (const auto& guest : guests_) {
      require<CommError>(!guest || !has_ended(guest->socket), "{} ended before all ranks had come",
                         guest ? rank_text(guest->hello.rank, guest->hello.host) : "");
    }
  }
  [[noreturn]] void refuse_missing() const {
    std::vector<int> missing;
    for (int rank = 1; rank < job_->size; ++rank) {
      if (!guests_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    const std::size_t count = missing.size();
    constexpr std::size_t kNamed = 16;
    missing.resize(std::min(count, kNamed));
    fail<CommError>("rank{} {}{} of {} did not come to rank 0 on {} within {:g} s",
                    count == 1 ? "" : "s", fmt::join(missing, ", "), count > kNamed ? ", ..." : "",
                    job_->size, job_->host, job_->start_limit.count());
  }

  const TcpJob* job_;
  Reception reception_;
  std::vector<std::optional<Reception::Guest>> guests_;
  Socket latest_;
};

Meeting host_all(const TcpJob& job, Clock::time_point end) {
  Meeting meeting{.listener = job.listener ? Socket(*job.listener) : listen_at(job.meeting.port)};
  Host host(job, meeting.listener);
  try {
    host.gather(end);
    meeting.ranks = host.addresses(port_of(meeting.listener));
  } catch (const CommError& error) {
    host.refuse(error.what());
    throw;
  }
  host.answer({.ranks = meeting.ranks});
  meeting.control = host.take_sockets();
  return meeting;
}

/// All but rank 0.
Meeting join_first(const TcpJob& job, Clock::time_point end) {
  Meeting meeting{.listener = listen_at(0)};
  std::vector<std::byte> bytes(kAnswerHeaderBytes);
  try {
    meeting.control.push_back(connect_to(job.meeting.host, job.meeting.port, end));
    const Socket& first = meeting.control.front();
    meeting.first_address = peer_address(first);
    send_all(first, format_hello(hello_of(job, Hello::Purpose::control, port_of(meeting.listener))),
             end);
    // Rank 0 began to wait later than this one, perhaps, and has the last word.
    const auto answered = end + std::chrono::duration_cast<Clock::duration>(job.start_limit);
    recv_all(first, bytes, answered);
    const auto more = answer_bytes(std::span(bytes).first<kAnswerHeaderBytes>());
    require<CommError>(more.has_value(), "what listens there is no llmtrain");
    bytes.resize(kAnswerHeaderBytes + *more);
    recv_all(first, std::span(bytes).subspan(kAnswerHeaderBytes), answered);
  } catch (const CommError& error) {
    fail<CommError>("rank {} on {} cannot join rank 0 at {} port {} (MASTER_ADDR, MASTER_PORT): {}",
                    job.rank, job.host, job.meeting.host, job.meeting.port, error.what());
  }
  Answer answer = parse_answer(bytes, job.size);
  require<CommError>(answer.refusal.empty(), "{}", answer.refusal);
  meeting.ranks = std::move(answer.ranks);
  return meeting;
}

}  // namespace

std::string rank_text(int rank, const std::string& host) {
  return fmt::format("rank {} on {}", rank, host);
}

bool Reception::listen_to(Stranger& stranger) {
  while (stranger.got < kHelloBytes) {
    const ssize_t n = ::recv(stranger.socket.fd(), stranger.bytes.data() + stranger.got,
                             kHelloBytes - stranger.got, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    stranger.got += static_cast<std::size_t>(n);
    if (begins_as_hello(std::span(stranger.bytes).first(stranger.got))) continue;
    log::warning("a connection from {} is not llmtrain's, and was closed",
                 peer_address(stranger.socket));
    return false;
  }
  return true;
}

std::optional<Reception::Guest> Reception::next(Clock::time_point end) {
  // Beyond it the oldest that said nothing yet makes room.
  constexpr std::size_t kStrangers = 4096;
  while (true) {
    std::erase_if(strangers_, [](Stranger& stranger) { return !listen_to(stranger); });
    const auto ready =
        std::find_if(strangers_.begin(), strangers_.end(),
                     [](const Stranger& stranger) { return stranger.got == kHelloBytes; });
    if (ready != strangers_.end()) {
      Guest guest{std::move(ready->socket), parse_hello(ready->bytes)};
      strangers_.erase(ready);
      return guest;
    }
    const auto now = Clock::now();
    if (now >= end) return std::nullopt;
    std::vector<pollfd> entries{{.fd = listener_->fd(), .events = POLLIN, .revents = 0}};
    for (const Stranger& stranger : strangers_) {
      entries.push_back({.fd = stranger.socket.fd(), .events = POLLIN, .revents = 0});
    }
    const auto left = std::chrono::ceil<milliseconds>(end - now).count();
    ::poll(entries.data(), entries.size(), static_cast<int>(std::min<decltype(left)>(left, 500)));
    while (true) {
      Socket socket = accept_from(*listener_);
      if (!socket.is_open()) break;
      if (strangers_.size() == kStrangers) strangers_.pop_front();
      strangers_.push_back({.socket = std::move(socket)});
    }
  }
}

Meeting meet(const TcpJob& job, Clock::time_point end) {
  return job.rank == 0 ? host_all(job, end) : join_first(job, end);
}

std::vector<Socket> connect_all(const TcpJob& job, const Meeting& meeting, Clock::time_point end,
                                const std::function<void()>& check) {
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  // Each connects to those before it, whose system takes the connection while they are busy with
  // their own, and then takes those of the ranks behind it: nobody waits for one that waits.
  const HelloBytes hello = format_hello(hello_of(job, Hello::Purpose::messages, 0));
  for (int rank = 0; rank < job.rank; ++rank) {
    const RankAddress& place = meeting.ranks[static_cast<std::size_t>(rank)];
    const std::string& address = place.address.empty() ? meeting.first_address : place.address;
    Socket& socket = sockets[static_cast<std::size_t>(rank)];
    try {
      socket = connect_to(address, place.port, end, check);
      send_all(socket, hello, end);
    } catch (const CommError& error) {
      check();
      fail<CommError>("{} cannot connect to {} at {} port {}: {}", rank_text(job.rank, job.host),
                      rank_text(rank, place.host), address, place.port, error.what());
    }
  }
  Reception reception(meeting.listener);
  for (int missing = job.size - 1 - job.rank; missing > 0;) {
    check();
    auto guest = reception.next(std::min(end, Clock::now() + milliseconds(200)));
    require<CommError>(guest || Clock::now() < end,
                       "{} of the ranks behind rank {} did not connect to {} within {:g} s",
                       missing, job.rank, job.host, job.start_limit.count());
    if (!guest) continue;
    check_fits(job, guest->hello);
    Socket& socket = sockets[static_cast<std::size_t>(guest->hello.rank)];
    if (guest->hello.rank <= job.rank || socket.is_open() ||
        guest->hello.purpose != Hello::Purpose::messages) {
      refuse_twice(guest->hello.rank,
                   meeting.ranks[static_cast<std::size_t>(guest->hello.rank)].host,
                   guest->hello.host);
    }
    socket = std::move(guest->socket);
    --missing;
  }
  return sockets;
}

}  // namespace llmtrain::tcp
