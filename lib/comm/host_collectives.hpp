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

#include "lib/comm/collective_log.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/exchange_queue.hpp"
#include "lib/comm/open_messages.hpp"

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
  int long_waits = 0;  // of World::LongWait, of which the outermost counts
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
  using Step = ExchangeQueue::Step;

  std::size_t count() const { return members_.size(); }
  /// What was called last.
  const CollectiveRecord& last_call() const { return call_; }
  /// Memory for the terms of others; what is exchanged at a time fits it.
  void set_terms(Bytes memory) { terms_ = memory; }
  Bytes terms() const { return terms_; }
  /// Bytes of one member's part of what is exchanged at a time, whole elements, with so much memory
  /// for terms.
  std::size_t part_bytes(Bytes memory, DType dtype) const;

  /// Queues a collective all of whose messages `begin` begins.
  Handle submit_messages(std::function<void(OpenMessages&)> begin);
  /// Queues a reduction: steps[l], if there is one, is done in lane l, with the memory of that lane
  /// alone.
  Handle submit_lanes(std::vector<Step> steps);
  Bytes lane_terms(int lane) const;
  /// Queues what is over when `body`, which waits itself, returns.
  Handle submit_whole(std::function<void()> body);
  /// Queues a message. `before` runs when it is its turn, `after` when it has come.
  Handle submit_send(Bytes all, int to, std::function<void()> before = {});
  Handle submit_recv(Bytes all, int from, std::function<void()> after = {});
  /// `begin` begins messages, which are done when it returns; of a body of submit_whole.
  void exchange(const CollectiveRecord& call,
                const std::function<void(OpenMessages&)>& begin) const;

  // What follows begins messages. Each lane's are told from others by their tags.
  static constexpr int kNoLane = -1;
  /// parts[m] = what member m gives as `mine`.
  void gather(OpenMessages& messages, std::span<const std::byte> mine, std::span<const Bytes> parts,
              int lane = kNoLane) const;
  /// to[m] = what member m has for this one; from[m] goes to it. Sizes differ as they like.
  void exchange_parts(OpenMessages& messages, std::span<const Bytes> from,
                      std::span<const Bytes> to) const;
  void send_to_all(OpenMessages& messages, Bytes all, int root) const;
  /// Sends parts[m] to every other member m, and receives into `memory` what they send: as many
  /// bytes as parts[rank()] has, however many they get.
  void send_terms(OpenMessages& messages, std::span<const Bytes> parts, Bytes memory,
                  int lane = kNoLane) const;

  /// Behind send_terms: writes the reduction of what came and of parts[rank()] to `out`, which may
  /// be one of the parts.
  void add_terms(std::span<const Bytes> parts, Bytes memory, DType dtype, ReduceOp op,
                 std::byte* out) const;

  /// The piece of `part` that begins `at` bytes behind its begin, of so many bytes at most.
  static Bytes piece_of(Bytes part, std::size_t at, std::size_t bytes) {
    const std::size_t begin = std::min(at, part.size());
    return part.subspan(begin, std::min(bytes, part.size() - begin));
  }
  /// `all` as the members' parts, one after another.
  static std::vector<Bytes> parts_of(Bytes all, std::span<const std::int64_t> counts, DType dtype);
  /// As parts that differ by one element at most.
  std::vector<Bytes> even_parts(Bytes all, DType dtype) const;

  void do_barrier() final;
  void do_gather_bytes(std::span<const std::byte> mine, Bytes all) final;
  void observe(const CollectiveRecord& record) final;

 private:
  // Messages of a collective, of neighbours, and of each lane go on side by side.
  static constexpr int kTags = 2 + ExchangeQueue::kLanes;
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  int tag(int lane) const { return lane == kNoLane ? first_tag_ : first_tag_ + 2 + lane; }
  void compare_calls();

  std::vector<int> members_;
  int first_tag_;
  HostExchange* exchange_;
  CollectiveRecord call_;  // the last one
  Bytes terms_;
};

}  // namespace llmtrain
