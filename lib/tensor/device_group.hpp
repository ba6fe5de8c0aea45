#pragma once
/// Collectives among the devices of several processes by a library that knows their links: what a
/// backend may provide beneath a communicator.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/tensor/dtype.hpp"

namespace llmtrain {

enum class ReduceOp : std::uint8_t { sum, max, min };

/// What makes members find each other: made by one of them, brought to the others by the host.
using DeviceGroupId = std::array<std::byte, 128>;

/// A call that was queued.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;
  /// What is launched from now on sees its results. The host waits for nothing.
  virtual void join() = 0;
  /// The device is behind it. By any thread.
  virtual bool is_done() const = 0;
};

/// Every call is queued on a queue of the group's own, behind all that was launched before it, and
/// is collective: all members queue the same, in one order. Addresses are the device's; counts are
/// of elements. Sums are in an order of the library's, the same in every run on the same machines.
class DeviceGroup {
 public:
  using Queued = std::shared_ptr<DeviceCall>;
  using Counts = std::span<const std::int64_t>;
  virtual ~DeviceGroup() = default;

  virtual Queued all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op) = 0;
  /// Member m's part has counts[m] elements; `in` may be this member's part of `out`.
  virtual Queued all_gather(const void* in, void* out, Counts counts, DType dtype) = 0;
  /// `out` may be this member's part of `in`.
  virtual Queued reduce_scatter(const void* in, void* out, Counts counts, DType dtype) = 0;
  /// in_counts[m] elements go to member m, out_counts[m] come from it, one part behind the other.
  virtual Queued all_to_all(const void* in, Counts in_counts, void* out, Counts out_counts,
                            DType dtype) = 0;
  virtual Queued broadcast(void* data, std::int64_t count, DType dtype, int root) = 0;
  virtual Queued send(const void* data, std::int64_t count, DType dtype, int to) = 0;
  virtual Queued recv(void* data, std::int64_t count, DType dtype, int from) = 0;
  /// DeviceError with what the library says of a failure behind the calls so far. By any thread.
  virtual void check() = 0;
};

}  // namespace llmtrain
