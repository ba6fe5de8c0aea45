#include "lib/comm/tcp/line.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/base/require.hpp"

namespace llmtrain::tcp {

// Memory for a message that nobody expects grows with what has come of it, not with what its header
// promises.
constexpr std::size_t kGrowthBytes = std::size_t{1} << 20;

Tickets::Ticket Tickets::add() {
  if (free_.empty()) {
    states_.emplace_back();
    return static_cast<Ticket>(states_.size() - 1);
  }
  const Ticket ticket = free_.back();
  free_.pop_back();
  states_[ticket] = State();
  return ticket;
}

void Tickets::finish(Ticket ticket, std::string problem) {
  states_[ticket] = {.done = true, .problem = std::move(problem)};
}

bool Tickets::take(Ticket ticket) {
  State& state = states_[ticket];
  if (!state.done) return false;
  free_.push_back(ticket);
  if (!state.problem.empty()) throw CommError(state.problem);
  return true;
}

void Line::send(Ticket ticket, int tag, std::span<const std::byte> data) {
  outgoing_.push_back({.header = format_header({.tag = tag, .bytes = data.size()}),
                       .data = data,
                       .ticket = ticket});
}

void Line::expect(Ticket ticket, int tag, std::span<std::byte> into) {
  Queue& queue = queues_[tag];
  ++expected_;
  if (queue.kept.empty()) {
    queue.expected.push_back({ticket, into});
    return;
  }
  deliver({ticket, into}, queue.kept.front());
  queue.kept.pop_front();
}

void Line::refuse(Ticket ticket, std::size_t bytes, std::size_t expected_bytes) {
  tickets_->finish(
      ticket, fmt::format("rank {} sent {} B where {} were expected: the ranks do not call the "
                          "same (debug.check_collectives finds where)",
                          peer_, bytes, expected_bytes));
  --expected_;
}

void Line::deliver(const Expected& expected, std::span<const std::byte> message) {
  if (message.size() != expected.into.size()) {
    return refuse(expected.ticket, message.size(), expected.into.size());
  }
  std::copy(message.begin(), message.end(), expected.into.begin());
  tickets_->finish(expected.ticket);
  --expected_;
}

bool Line::write() {
  bool moved = false;
  while (!outgoing_.empty()) {
    Outgoing& front = outgoing_.front();
    const std::size_t header_sent = std::min(front.sent, kMessageHeaderBytes);
    const auto data = front.data.subspan(front.sent - header_sent);
    std::array<iovec, 2> parts{
        iovec{front.header.data() + header_sent, kMessageHeaderBytes - header_sent},
        iovec{const_cast<std::byte*>(data.data()), data.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) return moved;
    if (n < 0) throw LineEnded{};
    moved = true;
    front.sent += static_cast<std::size_t>(n);
    if (front.sent < kMessageHeaderBytes + front.data.size()) continue;
    tickets_->finish(front.ticket);
    outgoing_.pop_front();
  }
  return moved;
}

bool Line::read() {
  bool moved = false;
  while (expected_ > 0) {
    const std::span<std::byte> to = room();
    const ssize_t n = ::recv(socket_.fd(), to.data(), to.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return moved;
    if (n <= 0) throw LineEnded{};
    moved = true;
    advance(static_cast<std::size_t>(n));
  }
  return moved;
}

std::span<std::byte> Line::room() {
  if (header_got_ < kMessageHeaderBytes) return std::span(header_).subspan(header_got_);
  const std::size_t left = incoming_.header.bytes - incoming_.got;
  switch (incoming_.fate) {
    case Incoming::Fate::straight:
      return incoming_.expected.into.subspan(incoming_.got);
    case Incoming::Fate::keep:
      if (incoming_.bytes.size() == incoming_.got) {
        incoming_.bytes.resize(incoming_.got + std::min(left, kGrowthBytes));
      }
      return std::span(incoming_.bytes).subspan(incoming_.got);
    case Incoming::Fate::drop:
      incoming_.bytes.resize(std::min(left, kGrowthBytes));
  }
  return incoming_.bytes;
}

void Line::advance(std::size_t bytes) {
  if (header_got_ < kMessageHeaderBytes) {
    header_got_ += bytes;
    if (header_got_ < kMessageHeaderBytes) return;
    begin_message();
  } else {
    incoming_.got += bytes;
  }
  if (incoming_.got == incoming_.header.bytes) end_message();
}

void Line::begin_message() {
  incoming_ = {.header = parse_header(header_)};
  auto& expected = queues_[incoming_.header.tag].expected;
  if (expected.empty()) return;
  const Expected first = expected.front();
  expected.pop_front();
  if (first.into.size() == incoming_.header.bytes) {
    incoming_.fate = Incoming::Fate::straight;
    incoming_.expected = first;
  } else {
    incoming_.fate = Incoming::Fate::drop;
    refuse(first.ticket, incoming_.header.bytes, first.into.size());
  }
}

void Line::end_message() {
  header_got_ = 0;
  if (incoming_.fate == Incoming::Fate::straight) {
    tickets_->finish(incoming_.expected.ticket);
    --expected_;
  } else if (incoming_.fate == Incoming::Fate::keep) {
    Queue& queue = queues_[incoming_.header.tag];
    if (queue.expected.empty()) {
      queue.kept.push_back(std::move(incoming_.bytes));
    } else {  // by one that came while the message did
      const Expected first = queue.expected.front();
      queue.expected.pop_front();
      deliver(first, incoming_.bytes);
    }
  }
  incoming_ = {};
}

}  // namespace llmtrain::tcp
