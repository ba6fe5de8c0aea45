#pragma once
/// Collectives of processes as exchanges in host memory with our own sums: what groups whose
/// tensors lie there, and groups that bring them there, have in common.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/trace.hpp"
#include "lib/comm/collective_log.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/exchange_queue.hpp"

namespace llmtrain {

/// What the groups of a process share, and outlives them.
struct HostExchange {
  explicit HostExchange(Transport& t) : transport(&t), queue(t) {}
  Transport* transport;
  ExchangeQueue queue;
  CollectiveLog log;
  /// Before every collective its members compare what they call: kind, bytes and site. CommError,
  /// naming two that differ.
  bool check = false;
};

/// A group over a HostExchange. Every member sends its share of the data straight to the others:
/// all_reduce and reduce_scatter give each member a part to add up, all_gather hands parts around.
/// A rank of n sends 2 (n-1)/n B in an all_reduce of B bytes, and (n-1)/n B in an all_gather to or
/// a reduce_scatter of B bytes, the least that is possible.
class HostCollectives : public Communicator {
 public:
  HostCollectives(std::string name, std::vector<int> members, int index, int id,
                  HostExchange& exchange);
  [[noreturn]] void abort(int code) final;

 protected:
  using Bytes = std::span<std::byte>;
  /// A collective whose turn it is.
  struct Call {
    Transport* transport;
    const CollectiveRecord* record;
  };

  std::size_t count() const { return members_.size(); }
  /// What was called last.
  const CollectiveRecord& last_call() const { return call_; }
  /// Memory for the terms of others; what is exchanged at a time fits it.
  void set_terms(Bytes memory) { terms_ = memory; }
  /// Bytes of one member's part of what is exchanged at a time, whole elements.
  std::size_t part_bytes(DType dtype) const;

  /// Queues `body`, which takes a Call, as a collective that is done when it returns.
  template <class Body>
  Handle submit(Body body) {
    return exchange_->queue.submit([body = std::move(body), call = call_](Transport& t) {
      const trace::Scope span(trace::Kind::communication, [&] { return to_string(call); });
      body(Call{&t, &call});
      return std::vector<Transport::Ticket>();
    });
  }
  /// Queues a message. `before` runs when it is its turn, `after` when it has come.
  using Step = std::function<void()>;
  Handle submit_send(Bytes all, int to, Step before = {});
  Handle submit_recv(Bytes all, int from, Step after = {});

  // What follows is done by whoever drives the queue, and waits for the other members.

  /// parts[m] = what member m gives as `mine`.
  void gather(const Call& call, std::span<const std::byte> mine,
              std::span<const Bytes> parts) const;
  /// to[m] = what member m has for this one; from[m] goes to it. Sizes differ as they like.
  void exchange_parts(const Call& call, std::span<const Bytes> from,
                      std::span<const Bytes> to) const;
  void send_to_all(const Call& call, Bytes all, int root) const;
  /// `all` = reduction of the members', in pieces that fit the memory for terms.
  void reduce_pieces(const Call& call, Bytes all, DType dtype, ReduceOp op) const;
  /// Sends parts[m] to every other member m, and writes the reduction of what they send and of
  /// parts[rank()] to `out`, which may be one of the parts. They send as many bytes as that has,
  /// however many they get; all fits the memory for terms.
  void add_up(const Call& call, std::span<const Bytes> parts, DType dtype, ReduceOp op,
              std::byte* out) const;

  /// The piece of `part` that begins `at` bytes behind its begin, of so many bytes at most.
  static Bytes piece_of(Bytes part, std::size_t at, std::size_t bytes) {
    const std::size_t begin = std::min(at, part.size());
    return part.subspan(begin, std::min(bytes, part.size() - begin));
  }
  /// `all` as the members' parts, one after another.
  static std::vector<Bytes> parts_of(Bytes all, std::span<const std::int64_t> counts, DType dtype);

  void do_barrier() final;
  void do_gather_bytes(std::span<const std::byte> mine, Bytes all) final;
  void observe(const CollectiveRecord& record) final;

 private:
  class Messages;
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  std::string peer_text(int member) const;
  void compare_calls();

  std::vector<int> members_;
  int tag_;
  HostExchange* exchange_;
  CollectiveRecord call_;  // the last one
  Bytes terms_;
};

}  // namespace llmtrain
