#include "lib/comm/host_collectives.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>

#include "lib/base/require.hpp"
#include "lib/comm/ordered_sum.hpp"

namespace llmtrain {

namespace {

using Ticket = Transport::Ticket;

/// Bytes of a message, so that no library meets a size beyond 2^31 and pieces stay in the caches.
constexpr std::size_t kMessageBytes = std::size_t{1} << 22;

template <class Byte, class Visit>
void for_each_message(std::span<Byte> all, const Visit& visit) {
  for (std::size_t at = 0; at < all.size(); at += kMessageBytes) {
    visit(all.subspan(at, std::min(kMessageBytes, all.size() - at)));
  }
}

struct Range {
  std::size_t begin = 0, size = 0;
};

/// Part `index` of `count` things in `parts` parts that differ by one at most.
Range part_of(std::size_t count, int parts, int index) {
  const auto n = static_cast<std::size_t>(parts);
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = count / n * i + std::min(i, count % n);
  return {begin, count / n + (i < count % n ? 1 : 0)};
}

}  // namespace

/// What goes to and comes from other members in a collective.
class HostCollectives::Messages {
 public:
  Messages(const HostCollectives& group, const Call& call) : group_(&group), call_(call) {}
  void send(int to, std::span<const std::byte> data) {
    for_each_message(data, [&](std::span<const std::byte> part) {
      add(to, call_.transport->send(group_->world_rank(to), group_->tag_, part));
    });
  }
  void recv(int from, Bytes data) {
    for_each_message(data, [&](Bytes part) {
      add(from, call_.transport->recv(group_->world_rank(from), group_->tag_, part));
    });
  }
  /// CommError naming the ranks that do not answer.
  void finish() {
    const TimeLimit patience = group_->exchange_->queue.patience();
    const std::vector<std::size_t> missing = call_.transport->wait(tickets_, patience);
    std::set<int> ranks;
    for (const std::size_t m : missing) ranks.insert(group_->world_rank(peers_[m]));
    require<CommError>(missing.empty(), "no answer within {:g} s from rank{} {}: {}",
                       patience.count(), ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                       to_string(*call_.record));
  }

 private:
  void add(int peer, Ticket ticket) {
    peers_.push_back(peer);
    tickets_.push_back(ticket);
  }
  const HostCollectives* group_;
  Call call_;
  std::vector<Ticket> tickets_;
  std::vector<int> peers_;  // of each ticket
};

HostCollectives::HostCollectives(std::string name, std::vector<int> members, int index, int id,
                                 HostExchange& exchange)
    : Communicator(std::move(name), index, static_cast<int>(members.size())),
      members_(std::move(members)),
      tag_(2 * id),
      exchange_(&exchange) {}

void HostCollectives::abort(int code) {
  exchange_->transport->abort(code);
  std::_Exit(code);
}

std::string HostCollectives::peer_text(int member) const {
  return fmt::format("rank {}, {}", world_rank(member), to_string(call_));
}

// Messages have a tag of their own: they may be under way while collectives go on.
Handle HostCollectives::submit_send(Bytes all, int to, Step before) {
  return exchange_->queue.submit(
      [this, all, to, before = std::move(before)](Transport& t) {
        if (before) before();
        std::vector<Ticket> tickets;
        for_each_message(
            all, [&](Bytes part) { tickets.push_back(t.send(world_rank(to), tag_ + 1, part)); });
        return tickets;
      },
      peer_text(to));
}

Handle HostCollectives::submit_recv(Bytes all, int from, Step after) {
  return exchange_->queue.submit(
      [this, all, from](Transport& t) {
        std::vector<Ticket> tickets;
        for_each_message(
            all, [&](Bytes part) { tickets.push_back(t.recv(world_rank(from), tag_ + 1, part)); });
        return tickets;
      },
      peer_text(from), std::move(after));
}

void HostCollectives::do_barrier() {
  const std::byte mine{};
  std::vector<std::byte> all(count());
  do_gather_bytes({&mine, 1}, all);
}

void HostCollectives::do_gather_bytes(std::span<const std::byte> mine, Bytes all) {
  exchange_->queue.run([&](Transport& t) {
    const trace::Scope span(trace::Kind::communication, [&] { return to_string(call_); });
    const std::vector<std::int64_t> counts(count(), static_cast<std::int64_t>(mine.size()));
    gather({&t, &call_}, mine, parts_of(all, counts, DType::u8));
    return std::vector<Ticket>();
  });
}

void HostCollectives::observe(const CollectiveRecord& record) {
  call_ = record;
  exchange_->log.note(record);
  const bool message = record.kind == Collective::send || record.kind == Collective::recv;
  if (exchange_->check && !message) compare_calls();
}

/// Texts of one length: whoever calls something else gathers as many bytes.
void HostCollectives::compare_calls() {
  using Text = std::array<char, 256>;
  std::vector<Text> all(count());
  Text mine{};
  CollectiveRecord comparable = call_;
  if (call_.uneven) comparable.bytes = 0;
  to_string(comparable).copy(mine.data(), mine.size() - 1);
  do_gather_bytes(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (int m = 0; m < size(); ++m) {
    const Text& theirs = all[static_cast<std::size_t>(m)];
    require<CommError>(theirs == mine,
                       "the ranks of {} do not call the same: rank {} {}; rank {} {}", name(),
                       world_rank(rank()), mine.data(), world_rank(m), theirs.data());
  }
}

std::vector<HostCollectives::Bytes> HostCollectives::parts_of(Bytes all,
                                                              std::span<const std::int64_t> counts,
                                                              DType dtype) {
  std::vector<Bytes> parts;
  for (const std::int64_t n : counts) {
    const std::size_t bytes = static_cast<std::size_t>(n) * size_of(dtype);
    parts.push_back(all.first(bytes));
    all = all.subspan(bytes);
  }
  return parts;
}

void HostCollectives::gather(const Call& call, std::span<const std::byte> mine,
                             std::span<const Bytes> parts) const {
  Messages messages(*this, call);
  for (int m = 0; m < size(); ++m) {
    const Bytes part = parts[static_cast<std::size_t>(m)];
    if (m != rank()) {
      messages.recv(m, part);
      messages.send(m, mine);
    } else if (!mine.empty() && part.data() != mine.data()) {
      std::memmove(part.data(), mine.data(), mine.size());
    }
  }
  messages.finish();
}

void HostCollectives::exchange_parts(const Call& call, std::span<const Bytes> from,
                                     std::span<const Bytes> to) const {
  Messages messages(*this, call);
  for (std::size_t m = 0; m < count(); ++m) {
    if (static_cast<int>(m) != rank()) {
      messages.recv(static_cast<int>(m), to[m]);
      messages.send(static_cast<int>(m), from[m]);
    } else if (!to[m].empty()) {
      std::memcpy(to[m].data(), from[m].data(), to[m].size());
    }
  }
  messages.finish();
}

void HostCollectives::send_to_all(const Call& call, Bytes all, int root) const {
  Messages messages(*this, call);
  if (rank() != root) messages.recv(root, all);
  for (int m = 0; rank() == root && m < size(); ++m) {
    if (m != root) messages.send(m, all);
  }
  messages.finish();
}

void HostCollectives::add_up(const Call& call, std::span<const Bytes> parts, DType dtype,
                             ReduceOp op, std::byte* out) const {
  const Bytes mine = parts[static_cast<std::size_t>(rank())];
  Messages messages(*this, call);
  std::vector<const std::byte*> terms(count());
  for (int m = 0; m < size(); ++m) {
    const auto at = static_cast<std::size_t>(m);
    if (m == rank()) {
      terms[at] = mine.data();
      continue;
    }
    const Bytes term = terms_.subspan(at * mine.size(), mine.size());
    terms[at] = term.data();
    messages.recv(m, term);
    messages.send(m, parts[at]);
  }
  messages.finish();
  reduce_in_order(terms, out, static_cast<std::int64_t>(mine.size() / size_of(dtype)), dtype, op);
}

std::size_t HostCollectives::part_bytes(DType dtype) const {
  require(!terms_.empty(), "a reduction over {} ranks of {} without staging", size(), name());
  const std::size_t element = size_of(dtype);
  const std::size_t elements = terms_.size() / count() / element;
  require(elements > 0, "{} ranks of {} share {} B of staging", size(), name(), terms_.size());
  return elements * element;
}

// A piece is cut into a part for each member, who adds it up and hands the sum around.
void HostCollectives::reduce_pieces(const Call& call, Bytes all, DType dtype, ReduceOp op) const {
  const std::size_t element = size_of(dtype);
  const std::size_t piece_bytes = part_bytes(dtype) * count();
  for (std::size_t at = 0; at < all.size(); at += piece_bytes) {
    const Bytes piece = piece_of(all, at, piece_bytes);
    std::vector<Bytes> parts;
    for (int m = 0; m < size(); ++m) {
      const Range range = part_of(piece.size() / element, size(), m);
      parts.push_back(piece.subspan(range.begin * element, range.size * element));
    }
    const Bytes mine = parts[static_cast<std::size_t>(rank())];
    add_up(call, parts, dtype, op, mine.data());
    gather(call, mine, parts);
  }
}

}  // namespace llmtrain
