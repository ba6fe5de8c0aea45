#pragma once
/// Collectives within one group of ranks. lib/comm moves and reduces bytes; what needs a backward
/// is wrapped in lib/ops.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/tensor/device_group.hpp"
#include "lib/tensor/tensor.hpp"

namespace llmtrain {

enum class Collective : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier,
};
std::string_view to_string(Collective kind);
std::optional<Collective> parse_collective(std::string_view name);

/// One call as the log, the error message and the plan see it.
struct CollectiveRecord {
  std::uint64_t sequence = 0;
  Collective kind = Collective::barrier;
  std::string group;
  std::uint64_t bytes = 0;
  std::string site;
  /// Data decide how many bytes there are, on each member others.
  bool uneven = false;
  /// Of parts that are not alike: elements of this member's and of all; 0 where all have as many.
  std::int64_t own_elements = 0, elements = 0;
};
std::string to_string(const CollectiveRecord& record);

/// Completion of an asynchronous call. Operands belong to it until `wait` returns; a Handle that is
/// dropped without waiting waits in its destructor, which keeps an error to itself: after one,
/// every other call of the process fails with it.
class Handle {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
  };

  Handle() = default;
  explicit Handle(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&& other) {
    wait();
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~Handle() {
    try {
      wait();
    } catch (...) {
    }
  }
  void wait() {
    if (pending_) std::exchange(pending_, nullptr)->wait();
  }

 private:
  std::unique_ptr<Pending> pending_;
};

/// A group of ranks with one order of its members. Every method but `rank`, `size`, `name` and
/// `abort` is collective over the group: all members call it in the same order over
/// all communicators. Operands are contiguous. `site` names the caller in errors and traces.
class Communicator {
 public:
  Communicator(std::string name, int rank, int size);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  /// Collectives and messages so far.
  std::uint64_t calls() const { return sequence_; }

  /// data = reduction over all members. Sums join neighbours in group order by pairs, level by
  /// level (as tree_sum does), in data's type; those of bf16 and fp16 in FP32, rounded once. (On
  /// devices whose library adds, in its own order and in data's type.)
  Handle all_reduce(const Tensor& data, ReduceOp op, std::string_view site);
  /// out = concatenation of the members' `in` in group order (out has size() times its elements).
  Handle all_gather(const Tensor& in, const Tensor& out, std::string_view site);
  /// out = this member's part of the element-wise sum of the members' `in`, added as all_reduce
  /// adds.
  Handle reduce_scatter(const Tensor& in, const Tensor& out, std::string_view site);
  /// The same with parts of any sizes, 0 among them: member m's has counts[m] elements, which all
  /// members know. `in` may be this member's part of `out`.
  Handle all_gather_parts(const Tensor& in, const Tensor& out, std::span<const std::int64_t> counts,
                          std::string_view site);
  /// `out` may be this member's part of `in`; the other parts stay as they are.
  Handle reduce_scatter_parts(const Tensor& in, const Tensor& out,
                              std::span<const std::int64_t> counts, std::string_view site);
  /// Part j of `in` goes to member j; part i of `out` came from member i. Equal parts.
  Handle all_to_all(const Tensor& in, const Tensor& out, std::string_view site);
  /// The same with parts of any sizes, 0 among them, one behind the other: in_counts[j] elements go
  /// to member j, out_counts[i] come from member i, who says the same. Tensors may be longer.
  Handle all_to_all_parts(const Tensor& in, std::span<const std::int64_t> in_counts,
                          const Tensor& out, std::span<const std::int64_t> out_counts,
                          std::string_view site);
  /// Bytes that all_to_all_parts has sent to others so far: of a plan only the mean.
  std::uint64_t uneven_bytes_sent() const { return uneven_bytes_sent_; }
  Handle broadcast(const Tensor& data, int root, std::string_view site);
  Handle send(const Tensor& data, int to, std::string_view site);
  Handle recv(const Tensor& data, int from, std::string_view site);
  void barrier(std::string_view site);
  /// Collective: to be called before messages between members that are neighbours in group order,
  /// the last one and the first among them; no others may follow.
  virtual void open_channels() {}

  /// Collective, for what the host knows: a value of every member, in group order. Waits.
  template <class T>
  std::vector<T> gather_values(const T& mine, std::string_view site) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size_));
    gather_bytes(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), site);
    return all;
  }
  /// As many numbers of every member, one member's behind another's. Waits.
  std::vector<std::int64_t> gather_numbers(std::span<const std::int64_t> mine,
                                           std::string_view site);
  /// The texts of all members, in group order. Waits.
  std::vector<std::string> gather_texts(std::string_view mine, std::string_view site);
  /// The text of member `root`, on every member. Waits.
  std::string share_text(std::string_view text, int root, std::string_view site);

  /// Memory of the tensors' device in which reductions over this group add, 0 if they need none; to
  /// be given before the first, and to stay while any is under way. Groups of one process may share
  /// it.
  virtual std::uint64_t staging_bytes() const { return 0; }
  virtual void use_staging(const Tensor&) {}

  /// Ends all ranks of the job at once with `code`; called when a step fails on this rank.
  [[noreturn]] virtual void abort(int code) = 0;

 protected:
  virtual Handle do_all_reduce(const Tensor& data, ReduceOp op) = 0;
  /// Parts of counts[m] elements; the counts are gone when the call returns.
  virtual Handle do_all_gather(const Tensor& in, const Tensor& out,
                               std::span<const std::int64_t> counts) = 0;
  virtual Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                                   std::span<const std::int64_t> counts) = 0;
  /// Parts of in_counts[j] and out_counts[i] elements; the counts are gone when the call returns.
  virtual Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts,
                               const Tensor& out, std::span<const std::int64_t> out_counts) = 0;
  virtual Handle do_broadcast(const Tensor& data, int root) = 0;
  virtual Handle do_send(const Tensor& data, int to) = 0;
  virtual Handle do_recv(const Tensor& data, int from) = 0;
  virtual void do_barrier() = 0;
  /// The members' bytes, of one number, in group order. Waits.
  virtual void do_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Called with every record before the call starts; `sequence` counts the group's.
  virtual void observe(const CollectiveRecord&) {}

 private:
  void note(Collective kind, std::uint64_t bytes, std::string_view site, bool uneven = false);
  void note_parts(Collective kind, const Tensor& whole, std::span<const std::int64_t> counts,
                  std::string_view site);
  void check_parts(Collective kind, const Tensor& part, const Tensor& whole,
                   std::span<const std::int64_t> counts, std::string_view site) const;
  void gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                    std::string_view site);

  std::string name_;
  int rank_;
  int size_;
  std::uint64_t sequence_ = 0;
  std::uint64_t uneven_bytes_sent_ = 0;
};

/// Receives what a meta communicator would have sent.
class CollectiveRecorder {
 public:
  virtual ~CollectiveRecorder() = default;
  /// A call starts; `members` are world ranks in group order. Returns its number.
  virtual std::uint64_t started(const CollectiveRecord& record, std::span<const int> members) = 0;
  /// The program goes on only when call `number` is done.
  virtual void awaited(std::uint64_t number) = 0;
};

/// Staging of groups that add on the host, whatever their size.
inline constexpr std::uint64_t kHostStagingBytes = std::uint64_t{1} << 20;

/// The group of one rank: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator(std::string name);
/// A group of any size that moves nothing and reports to `recorder` (may be null), with so much
/// staging if it is larger than one.
std::unique_ptr<Communicator> make_meta_communicator(
    std::string name, std::vector<int> members, int index, CollectiveRecorder* recorder,
    std::uint64_t staging_bytes = kHostStagingBytes);

}  // namespace llmtrain
