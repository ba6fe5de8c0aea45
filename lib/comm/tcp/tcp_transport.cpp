#include "lib/comm/tcp/tcp_transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <poll.h>
#include <thread>
#include <vector>

#include "lib/base/activity.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/tcp/line.hpp"
#include "lib/comm/tcp/rendezvous.hpp"
#include "lib/comm/tcp/watch.hpp"

namespace llmtrain::tcp {

namespace {

using std::chrono::milliseconds;

// Looks before a wait sleeps in the system: what comes soon is met awake, and ranks that share a
// core let each other go on.
constexpr int kLooks = 64;
// How long it sleeps at most, after which it looks whether ranks have ended.
constexpr milliseconds kSleep{20};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TcpJob& job) {
    const auto limit = std::chrono::duration_cast<Clock::duration>(job.start_limit);
    make_room_for_files(2 * static_cast<std::size_t>(job.size) + 64);
    Meeting meeting = meet(job, Clock::now() + limit);
    place_ = place_of(job, meeting.ranks);
    std::vector<std::string> names;
    for (int rank = 0; rank < job.size; ++rank) {
      names.push_back(rank_text(rank, meeting.ranks[static_cast<std::size_t>(rank)].host));
    }
    const auto end = job.end ? job.end : [](int code) { std::_Exit(code); };
    watch_ = std::make_unique<Watch>(job.rank, std::move(meeting.control), std::move(names), end);
    auto sockets = connect_all(job, meeting, Clock::now() + limit, [this] { watch_->check(); });
    for (std::size_t rank = 0; rank < sockets.size(); ++rank) {
      lines_.emplace_back(std::move(sockets[rank]), static_cast<int>(rank), tickets_);
    }
  }

  std::string_view name() const override { return "tcp"; }
  JobPlace place() const override { return place_; }

  Ticket send(int to, int tag, std::span<const std::byte> data) override {
    Line& line = line_of(to, tag);
    require(data.size() <= kLargestMessageBytes, "a message of {} B", data.size());
    const Ticket ticket = tickets_.add();
    const bool first = !line.wants_to_write();
    line.send(ticket, tag, data);
    if (first) move(to, POLLOUT);
    return ticket;
  }
  Ticket recv(int from, int tag, std::span<std::byte> data) override {
    Line& line = line_of(from, tag);
    const Ticket ticket = tickets_.add();
    line.expect(ticket, tag, data);
    return ticket;
  }
  bool is_done(Ticket ticket) override {
    if (tickets_.take(ticket)) return true;
    progress(milliseconds(0));
    return tickets_.take(ticket);
  }
  std::vector<std::size_t> wait(std::span<const Ticket> tickets, TimeLimit limit) override {
    const auto begin = Clock::now();
    std::vector<std::size_t> open(tickets.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
    for (int looks = 0;;) {
      std::erase_if(open, [&](std::size_t i) { return tickets_.take(tickets[i]); });
      const TimeLimit left = limit - waited_since(begin);
      if (open.empty() || waited_longer(begin, limit)) return open;
      activity::tick();
      const auto sleep = left < kSleep
                             ? std::chrono::ceil<milliseconds>(std::max(left, TimeLimit(0)))
                             : milliseconds(kSleep);
      if (progress(looks < kLooks ? milliseconds(0) : sleep)) {
        looks = 0;
      } else if (++looks < kLooks) {
        std::this_thread::yield();
      }
    }
  }

  void rest(int looks) override {
    if (looks < kLooks) {
      std::this_thread::yield();
    } else {
      progress(kSleep);
    }
  }

  void leave() override {
    watch_->leave();
    for (Line& line : lines_) line.close();
  }
  [[noreturn]] void abort(int code) override {
    watch_->abort(code);
    std::_Exit(code);
  }

 private:
  static JobPlace place_of(const TcpJob& job, const std::vector<RankAddress>& ranks) {
    JobPlace place{.rank = job.rank,
                   .size = job.size,
                   .local_rank = job.local_rank,
                   .local_size = job.local_size};
    if (job.local_size > 0) return place;
    place.local_rank = 0;
    for (int rank = 0; rank < job.size; ++rank) {
      if (ranks[static_cast<std::size_t>(rank)].host != job.host) continue;
      ++place.local_size;
      if (rank < job.rank) ++place.local_rank;
    }
    return place;
  }

  Line& line_of(int rank, int tag) {
    require(
        rank >= 0 && rank < place_.size && rank != place_.rank && tag >= 0 && tag <= kLargestTag,
        "rank {} of {} has no messages with rank {} under tag {}", place_.rank, place_.size, rank,
        tag);
    return lines_[static_cast<std::size_t>(rank)];
  }

  /// What the connection takes and gives; false when that is nothing.
  bool move(int rank, short events) {
    Line& line = lines_[static_cast<std::size_t>(rank)];
    try {
      bool moved = false;
      if ((events & POLLOUT) != 0) moved |= line.write();
      if ((events & POLLIN) != 0) moved |= line.read();
      return moved;
    } catch (const LineEnded&) {
      watch_->explain(rank);
    }
  }

  /// Moves what can be moved on all connections on which something is to be, and waits so long for
  /// the first of them; false when there was nothing. Who waits also notices the end of a rank from
  /// which it wants nothing: rank 0, which tells of ends, may stand still itself.
  bool progress(milliseconds sleep) {
    watch_->check();
    entries_.clear();
    ranks_.clear();
    for (int rank = 0; rank < place_.size; ++rank) {
      const Line& line = lines_[static_cast<std::size_t>(rank)];
      const int wanted =
          (line.wants_to_write() ? POLLOUT : 0) | (line.wants_to_read() ? POLLIN : 0);
      const int events =
          wanted != 0 || rank == place_.rank || sleep.count() == 0 ? wanted : POLLRDHUP;
      if (events == 0) continue;
      entries_.push_back({.fd = line.fd(), .events = static_cast<short>(events), .revents = 0});
      ranks_.push_back(rank);
    }
    if (::poll(entries_.data(), entries_.size(), static_cast<int>(sleep.count())) <= 0) {
      return false;
    }
    bool moved = false;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].revents == 0) continue;
      if (entries_[i].events == POLLRDHUP) watch_->explain(ranks_[i]);
      // A connection that broke says so to whoever uses it.
      const bool broken = (entries_[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
      moved |= move(ranks_[i], broken ? entries_[i].events : entries_[i].revents);
    }
    return moved;
  }

  JobPlace place_;
  Tickets tickets_;
  std::vector<Line> lines_;  // by rank
  std::unique_ptr<Watch> watch_;
  std::vector<pollfd> entries_;  // kept for their memory
  std::vector<int> ranks_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const TcpJob& job) {
  return std::make_unique<TcpTransport>(job);
}

}  // namespace llmtrain::tcp
