#include "lib/comm/host_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>

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
                   HostExchange& exchange)
      : Communicator(std::move(name), index, static_cast<int>(members.size())),
        members_(std::move(members)),
        tag_(2 * id),
        exchange_(&exchange),
        queue_(&exchange.queue) {}

  std::uint64_t staging_bytes() const override { return size() > 1 ? kHostStagingBytes : 0; }
  void use_staging(const Tensor& staging) override {
    require(staging.view().bytes() >= staging_bytes(), "{} B of staging", staging.view().bytes());
    staging_ = bytes_of(staging);
  }
  [[noreturn]] void abort(int code) override {
    exchange_->transport->abort(code);
    std::_Exit(code);
  }

 protected:
  Handle do_all_reduce(const Tensor& data, ReduceOp op) override {
    return submit([this, all = bytes_of(data), dtype = data.dtype(), op](const Call& call) {
      reduce_pieces(call, all, dtype, op);
    });
  }

  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t> counts) override {
    return submit([this, from = bytes_of(in), parts = parts_of(bytes_of(out), counts, out.dtype())](
                      const Call& call) { gather(call, from, parts); });
  }

  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t> counts) override {
    return submit(
        [this, parts = parts_of(bytes_of(in), counts, in.dtype()), to = bytes_of(out),
         dtype = in.dtype()](const Call& call) { scatter_pieces(call, parts, to, dtype); });
  }

  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts, const Tensor& out,
                       std::span<const std::int64_t> out_counts) override {
    return submit([this, from = parts_of(bytes_of(in), in_counts, in.dtype()),
                   to = parts_of(bytes_of(out), out_counts, out.dtype())](const Call& call) {
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
    });
  }

  Handle do_broadcast(const Tensor& data, int root) override {
    return submit([this, all = bytes_of(data), root](const Call& call) {
      Messages messages(*this, call);
      if (rank() != root) messages.recv(root, all);
      for (int m = 0; rank() == root && m < size(); ++m) {
        if (m != root) messages.send(m, all);
      }
      messages.finish();
    });
  }

  // Messages have a tag of their own: they may be under way while collectives go on.
  Handle do_send(const Tensor& data, int to) override {
    return queue_->submit(
        [this, all = bytes_of(data), to](Transport& t) {
          std::vector<Ticket> tickets;
          for_each_message(
              all, [&](Bytes part) { tickets.push_back(t.send(world_rank(to), tag_ + 1, part)); });
          return tickets;
        },
        fmt::format("rank {}, {}", world_rank(to), to_string(call_)));
  }

  Handle do_recv(const Tensor& data, int from) override {
    return queue_->submit(
        [this, all = bytes_of(data), from](Transport& t) {
          std::vector<Ticket> tickets;
          for_each_message(all, [&](Bytes part) {
            tickets.push_back(t.recv(world_rank(from), tag_ + 1, part));
          });
          return tickets;
        },
        fmt::format("rank {}, {}", world_rank(from), to_string(call_)));
  }

  void do_barrier() override {
    const std::byte mine{};
    std::vector<std::byte> all(count());
    do_gather_bytes({&mine, 1}, all);
  }

  void do_gather_bytes(std::span<const std::byte> mine, Bytes all) override {
    queue_->run([&](Transport& t) {
      const std::vector<std::int64_t> counts(count(), static_cast<std::int64_t>(mine.size()));
      gather({&t, &call_}, mine, parts_of(all, counts, DType::u8));
      return std::vector<Ticket>();
    });
  }

  void observe(const CollectiveRecord& record) override {
    call_ = record;
    exchange_->log.note(record);
    const bool message = record.kind == Collective::send || record.kind == Collective::recv;
    if (exchange_->check && !message) compare_calls();
  }

 private:
  /// A collective whose turn it is.
  struct Call {
    Transport* transport;
    const CollectiveRecord* record;
  };

  /// What goes to and comes from other members in a collective.
  class Messages {
   public:
    Messages(const HostCommunicator& group, const Call& call) : group_(&group), call_(call) {}
    void send(int to, std::span<const std::byte> data) {
      for (std::size_t at = 0; at < data.size(); at += kMessageBytes) {
        const auto part = data.subspan(at, std::min(kMessageBytes, data.size() - at));
        add(to, call_.transport->send(group_->world_rank(to), group_->tag_, part));
      }
    }
    void recv(int from, Bytes data) {
      for_each_message(data, [&](Bytes part) {
        add(from, call_.transport->recv(group_->world_rank(from), group_->tag_, part));
      });
    }
    /// CommError naming the ranks that do not answer.
    void finish() {
      const TimeLimit patience = group_->queue_->patience();
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
    const HostCommunicator* group_;
    Call call_;
    std::vector<Ticket> tickets_;
    std::vector<int> peers_;  // of each ticket
  };

  std::size_t count() const { return members_.size(); }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }

  template <class Body>
  Handle submit(Body body) {
    return queue_->submit([body = std::move(body), call = call_](Transport& t) {
      body(Call{&t, &call});
      return std::vector<Ticket>();
    });
  }

  template <class Visit>
  static void for_each_message(Bytes all, const Visit& visit) {
    for (std::size_t at = 0; at < all.size(); at += kMessageBytes) {
      visit(all.subspan(at, std::min(kMessageBytes, all.size() - at)));
    }
  }

  /// Texts of one length: whoever calls something else gathers as many bytes.
  void compare_calls() {
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

  /// `all` as the members' parts, one after another.
  static std::vector<Bytes> parts_of(Bytes all, std::span<const std::int64_t> counts, DType dtype) {
    std::vector<Bytes> parts;
    for (const std::int64_t n : counts) {
      const std::size_t bytes = static_cast<std::size_t>(n) * size_of(dtype);
      parts.push_back(all.first(bytes));
      all = all.subspan(bytes);
    }
    return parts;
  }

  void gather(const Call& call, std::span<const std::byte> mine,
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

  /// Sends `theirs(m)` to every other member, and writes the sum of what they send and `mine` to
  /// `out`. They send as many bytes as `mine` has, however many they get; all fits the staging.
  template <class Theirs>
  void exchange_and_add(const Call& call, const Theirs& theirs, Bytes mine, DType dtype,
                        ReduceOp op, std::byte* out) const {
    Messages messages(*this, call);
    std::vector<const std::byte*> terms(count());
    for (int m = 0; m < size(); ++m) {
      const auto at = static_cast<std::size_t>(m);
      if (m == rank()) {
        terms[at] = mine.data();
        continue;
      }
      const Bytes slot = staging_.subspan(at * mine.size(), mine.size());
      terms[at] = slot.data();
      messages.recv(m, slot);
      messages.send(m, theirs(m));
    }
    messages.finish();
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
  void reduce_pieces(const Call& call, Bytes all, DType dtype, ReduceOp op) const {
    const std::size_t element = size_of(dtype);
    const std::size_t piece_bytes = slot_bytes(dtype) * count();
    for (std::size_t at = 0; at < all.size(); at += piece_bytes) {
      const Bytes piece = all.subspan(at, std::min(piece_bytes, all.size() - at));
      const auto part = [&](int m) {
        const Range range = part_of(piece.size() / element, size(), m);
        return piece.subspan(range.begin * element, range.size * element);
      };
      const Bytes mine = part(rank());
      exchange_and_add(call, part, mine, dtype, op, mine.data());
      Messages messages(*this, call);
      for (int m = 0; m < size(); ++m) {
        if (m == rank()) continue;
        messages.recv(m, part(m));
        messages.send(m, mine);
      }
      messages.finish();
    }
  }

  // As many pieces as the largest part has: who has got all of its own still sends to the others.
  void scatter_pieces(const Call& call, std::span<const Bytes> parts, Bytes to, DType dtype) const {
    const std::size_t piece_bytes = slot_bytes(dtype);
    std::size_t largest = 0;
    for (const Bytes part : parts) largest = std::max(largest, part.size());
    for (std::size_t at = 0; at < largest; at += piece_bytes) {
      const auto piece = [&](int m) {
        const Bytes part = parts[static_cast<std::size_t>(m)];
        const std::size_t begin = std::min(at, part.size());
        return part.subspan(begin, std::min(piece_bytes, part.size() - begin));
      };
      const Bytes mine = piece(rank());
      exchange_and_add(call, piece, mine, dtype, ReduceOp::sum, mine.empty() ? nullptr : &to[at]);
    }
  }

  std::vector<int> members_;
  int tag_;
  HostExchange* exchange_;
  ExchangeQueue* queue_;
  CollectiveRecord call_;  // the last one
  Bytes staging_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, HostExchange& exchange) {
  return std::make_unique<HostCommunicator>(std::move(name), std::move(members), index, id,
                                            exchange);
}

}  // namespace llmtrain
