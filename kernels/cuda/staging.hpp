#pragma once
/// Pinned host memory through which bytes travel to a device while the host goes on.

#include <deque>

#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// A ring of pinned memory. Copies take pieces of it in order and give them back when the stream
/// has carried them out; the host waits only where the ring is full of copies under way.
class StagingRing {
 public:
  StagingRing() = default;
  /// The streams of all copies must have been waited for.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  static constexpr std::uint64_t kBytes = 32 << 20;
  /// Larger copies travel in pieces of this.
  static constexpr std::uint64_t kLargestPiece = kBytes / 4;

  /// Pins the memory. DeviceError when that fails.
  void allocate();

  /// Queues a copy of `bytes` to the device; `host` may be used again at once.
  void send(cudaStream_t stream, void* device, const void* host, std::uint64_t bytes);

  /// Copies begun so far.
  std::uint64_t begun() const { return begun_; }
  /// Waits for the first `copies` of them, each of which is a sign of life (activity::tick): who
  /// waits for what was launched behind the inputs of many micro-batches shows how far they are.
  void await(std::uint64_t copies);

 private:
  struct Piece {
    std::uint64_t begin = 0, end = 0;
    cudaEvent_t done = nullptr;
  };
  /// A free range of the ring; waits for copies that are still in it.
  std::uint64_t take(std::uint64_t bytes);
  void retire_oldest();

  std::byte* ring_ = nullptr;
  std::uint64_t next_ = 0, begun_ = 0;
  std::deque<Piece> under_way_;  // oldest first
  std::vector<cudaEvent_t> free_events_;
};

}  // namespace llmtrain::kernels::cuda
