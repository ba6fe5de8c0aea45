#include "lib/comm/host_communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lib/base/require.hpp"
#include "lib/comm/ordered_sum.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

namespace {

using Ticket = Transport::Ticket;
using Bytes = std::span<std::byte>;

/// Bytes of a message, so that no library meets a size beyond 2^31 and pieces stay in the caches.
constexpr std::size_t kMessageBytes = std::size_t{1} << 22;

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

Bytes bytes_of(const Tensor& tensor) {
  const View& view = tensor.view();
  require(tensor.device().kind() == DeviceKind::cpu, "a collective on the {} in host memory",
          to_string(tensor.device().kind()));
  return {view.as<std::byte>(), view.bytes()};
}

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::string name, std::vector<int> members, int index, int id,
                   ExchangeQueue& queue, Transport& transport)
      : Communicator(std::move(name), index, static_cast<int>(members.size())),
        members_(std::move(members)),
        tag_(2 * id),
        queue_(&queue),
        transport_(&transport) {}

  std::uint64_t staging_bytes() const override { return size() > 1 ? kHostStagingBytes : 0; }
  void use_staging(const Tensor& staging) override {
    require(staging.view().bytes() >= staging_bytes(), "{} B of staging", staging.view().bytes());
    staging_ = bytes_of(staging);
  }
  [[noreturn]] void abort(int code) override {
    transport_->abort(code);
    std::_Exit(code);
  }

 protected:
  Handle do_all_reduce(const Tensor& data, ReduceOp op) override {
    return queue_->submit([this, all = bytes_of(data), dtype = data.dtype(), op](Transport& t) {
      reduce_pieces(t, all, dtype, op);
      return std::vector<Ticket>();
    });
  }

  Handle do_all_gather(const Tensor& in, const Tensor& out) override {
    return queue_->submit([this, from = bytes_of(in), to = bytes_of(out)](Transport& t) {
      gather(t, from, to);
      return std::vector<Ticket>();
    });
  }

  Handle do_reduce_scatter(const Tensor& in, const Tensor& out) override {
    return queue_->submit(
        [this, from = bytes_of(in), to = bytes_of(out), dtype = in.dtype()](Transport& t) {
          scatter_pieces(t, from, to, dtype);
          return std::vector<Ticket>();
        });
  }

  Handle do_all_to_all(const Tensor& in, const Tensor& out) override {
    return queue_->submit([this, from = bytes_of(in), to = bytes_of(out)](Transport& t) {
      const std::size_t part = from.size() / count();
      std::vector<Ticket> tickets;
      for (int m = 0; m < size(); ++m) {
        const std::size_t at = part * static_cast<std::size_t>(m);
        if (m == rank()) {
          std::memcpy(&to[at], &from[at], part);
          continue;
        }
        begin_recv(t, tickets, m, to.subspan(at, part));
        begin_send(t, tickets, m, from.subspan(at, part));
      }
      t.wait(tickets);
      return std::vector<Ticket>();
    });
  }

  Handle do_broadcast(const Tensor& data, int root) override {
    return queue_->submit([this, all = bytes_of(data), root](Transport& t) {
      std::vector<Ticket> tickets;
      if (rank() != root) begin_recv(t, tickets, root, all);
      for (int m = 0; rank() == root && m < size(); ++m) {
        if (m != root) begin_send(t, tickets, m, all);
      }
      t.wait(tickets);
      return std::vector<Ticket>();
    });
  }

  // Messages have a tag of their own: they may be under way while collectives go on.
  Handle do_send(const Tensor& data, int to) override {
    return queue_->submit([this, all = bytes_of(data), to](Transport& t) {
      std::vector<Ticket> tickets;
      for_each_message(
          all, [&](Bytes part) { tickets.push_back(t.send(world_rank(to), tag_ + 1, part)); });
      return tickets;
    });
  }

  Handle do_recv(const Tensor& data, int from) override {
    return queue_->submit([this, all = bytes_of(data), from](Transport& t) {
      std::vector<Ticket> tickets;
      for_each_message(
          all, [&](Bytes part) { tickets.push_back(t.recv(world_rank(from), tag_ + 1, part)); });
      return tickets;
    });
  }

  void do_barrier() override {
    const std::byte mine{};
    std::vector<std::byte> all(count());
    do_gather_bytes({&mine, 1}, all);
  }

  void do_gather_bytes(std::span<const std::byte> mine, Bytes all) override {
    queue_->run([&](Transport& t) {
      gather(t, mine, all);
      return std::vector<Ticket>();
    });
  }

 private:
  std::size_t count() const { return members_.size(); }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }

  template <class Visit>
  static void for_each_message(Bytes all, const Visit& visit) {
    for (std::size_t at = 0; at < all.size(); at += kMessageBytes) {
      visit(all.subspan(at, std::min(kMessageBytes, all.size() - at)));
    }
  }
  void begin_send(Transport& t, std::vector<Ticket>& tickets, int to,
                  std::span<const std::byte> data) const {
    for (std::size_t at = 0; at < data.size(); at += kMessageBytes) {
      tickets.push_back(t.send(world_rank(to), tag_,
                               data.subspan(at, std::min(kMessageBytes, data.size() - at))));
    }
  }
  void begin_recv(Transport& t, std::vector<Ticket>& tickets, int from, Bytes data) const {
    for_each_message(data,
                     [&](Bytes part) { tickets.push_back(t.recv(world_rank(from), tag_, part)); });
  }

  void gather(Transport& t, std::span<const std::byte> mine, Bytes all) const {
    std::vector<Ticket> tickets;
    for (int m = 0; m < size(); ++m) {
      const Bytes part = all.subspan(mine.size() * static_cast<std::size_t>(m), mine.size());
      if (m != rank()) {
        begin_recv(t, tickets, m, part);
        begin_send(t, tickets, m, mine);
      } else if (part.data() != mine.data()) {
        std::memmove(part.data(), mine.data(), mine.size());
      }
    }
    t.wait(tickets);
  }

  /// Sends `theirs(m)` to every other member, and writes the sum of what they send and `mine` to
  /// `out`. They send as many bytes as `mine` has; all of it fits the staging.
  template <class Theirs>
  void exchange_and_add(Transport& t, const Theirs& theirs, Bytes mine, DType dtype, ReduceOp op,
                        std::byte* out) const {
    std::vector<Ticket> tickets;
    std::vector<const std::byte*> terms(count());
    for (int m = 0; m < size(); ++m) {
      const auto at = static_cast<std::size_t>(m);
      if (m == rank()) {
        terms[at] = mine.data();
        continue;
      }
      const Bytes slot = staging_.subspan(at * mine.size(), mine.size());
      terms[at] = slot.data();
      begin_recv(t, tickets, m, slot);
      begin_send(t, tickets, m, theirs(m));
    }
    t.wait(tickets);
    reduce_in_order(terms, out, static_cast<std::int64_t>(mine.size() / size_of(dtype)), dtype, op);
  }

  /// Bytes of one member's part of a piece at most.
  std::size_t slot_bytes(DType dtype) const {
    require(!staging_.empty(), "a reduction over {} ranks of {} without staging", size(), name());
    const std::size_t element = size_of(dtype);
    const std::size_t elements = staging_.size() / count() / element;
    require(elements > 0, "{} ranks of {} share {} B of staging", size(), name(), staging_.size());
    return elements * element;
  }

  // A piece is cut into a part for each member, who adds it up and hands the sum around.
  void reduce_pieces(Transport& t, Bytes all, DType dtype, ReduceOp op) const {
    const std::size_t element = size_of(dtype);
    const std::size_t piece_bytes = slot_bytes(dtype) * count();
    for (std::size_t at = 0; at < all.size(); at += piece_bytes) {
      const Bytes piece = all.subspan(at, std::min(piece_bytes, all.size() - at));
      const auto part = [&](int m) {
        const Range range = part_of(piece.size() / element, size(), m);
        return piece.subspan(range.begin * element, range.size * element);
      };
      const Bytes mine = part(rank());
      exchange_and_add(t, part, mine, dtype, op, mine.data());
      std::vector<Ticket> tickets;
      for (int m = 0; m < size(); ++m) {
        if (m == rank()) continue;
        begin_recv(t, tickets, m, part(m));
        begin_send(t, tickets, m, mine);
      }
      t.wait(tickets);
    }
  }

  void scatter_pieces(Transport& t, Bytes from, Bytes to, DType dtype) const {
    const std::size_t piece_bytes = slot_bytes(dtype);
    for (std::size_t at = 0; at < to.size(); at += piece_bytes) {
      const std::size_t bytes = std::min(piece_bytes, to.size() - at);
      const auto part = [&](int m) {
        return from.subspan(to.size() * static_cast<std::size_t>(m) + at, bytes);
      };
      exchange_and_add(t, part, part(rank()), dtype, ReduceOp::sum, &to[at]);
    }
  }

  std::vector<int> members_;
  int tag_;
  ExchangeQueue* queue_;
  Transport* transport_;
  Bytes staging_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, ExchangeQueue& queue,
                                                     Transport& transport) {
  return std::make_unique<HostCommunicator>(std::move(name), std::move(members), index, id, queue,
                                            transport);
}

}  // namespace llmtrain
