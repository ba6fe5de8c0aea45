#include "kernels/cuda/staging.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/activity.hpp"

namespace llmtrain::kernels::cuda {

namespace {
/// Pieces begin at multiples of this.
constexpr std::uint64_t kAlignment = 256;
}  // namespace

StagingRing::~StagingRing() {
  for (const Piece& piece : under_way_) cudaEventDestroy(piece.done);
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (ring_ != nullptr) cudaFreeHost(ring_);
}

void StagingRing::allocate() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault), "to pin host memory");
  ring_ = static_cast<std::byte*>(memory);
}

void StagingRing::retire_oldest() {
  const Piece& oldest = under_way_.front();
  check(cudaEventSynchronize(oldest.done), "to wait for a copy");
  free_events_.push_back(oldest.done);
  under_way_.pop_front();
  activity::tick();
}

void StagingRing::await(std::uint64_t copies) {
  while (begun_ - under_way_.size() < copies) retire_oldest();
}

std::uint64_t StagingRing::take(std::uint64_t bytes) {
  if (next_ + bytes > kBytes) {
    // What is left at the end of the ring stays unused; everything there is older than the rest.
    while (!under_way_.empty() && under_way_.front().begin >= next_) retire_oldest();
    next_ = 0;
  }
  const std::uint64_t begin = next_, end = next_ + bytes;
  while (!under_way_.empty() && under_way_.front().begin < end && under_way_.front().end > begin) {
    retire_oldest();
  }
  next_ = std::min(kBytes, (end + kAlignment - 1) / kAlignment * kAlignment);
  return begin;
}

void StagingRing::send(cudaStream_t stream, void* device, const void* host, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(host);
  for (std::uint64_t done = 0; done < bytes; done += kLargestPiece) {
    const std::uint64_t part = std::min(kLargestPiece, bytes - done);
    const std::uint64_t at = take(part);
    std::memcpy(ring_ + at, from + done, part);
    check(cudaMemcpyAsync(to + done, ring_ + at, part, cudaMemcpyHostToDevice, stream),
          "a copy to the device");
    cudaEvent_t event = nullptr;
    if (free_events_.empty()) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "to make an event");
    } else {
      event = free_events_.back();
      free_events_.pop_back();
    }
    under_way_.push_back({at, at + part, event});
    ++begun_;
    check(cudaEventRecord(event, stream), "to record an event");
  }
}

}  // namespace llmtrain::kernels::cuda
