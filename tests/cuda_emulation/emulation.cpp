#include "tests/cuda_emulation/emulation.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/fiber.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kMaxThreads = 1024;
constexpr unsigned kWarp = 32;
/// What a block may have, of which the driver keeps 1 KiB.
constexpr std::size_t kMaxSharedBytes = 227 << 10;
/// Where dynamic shared memory begins in the window, which begins at a multiple of kSharedWindow:
/// device code may believe in an alignment to 128 bytes and no more.
constexpr std::size_t kSharedWindow = 1024, kSharedBegin = 128;

/// LLMTRAIN_SIMT_ORDER, so that a whole program of tests can run in another order.
Order order_of_environment() {
  const char* const order = std::getenv("LLMTRAIN_SIMT_ORDER");
  if (order == nullptr || std::strcmp(order, "ascending") == 0) return Order::ascending;
  if (std::strcmp(order, "descending") == 0) return Order::descending;
  if (std::strcmp(order, "shuffled") == 0) return Order::shuffled;
  std::fprintf(stderr, "emulated GPU: unknown LLMTRAIN_SIMT_ORDER %s\n", order);
  std::abort();
}

/// What a thread waits for: nothing, the block, some lanes of its warp, or a condition.
enum class Wait : std::uint8_t { none, block, warp, condition, over };

struct Fiber {
  Context context;
  std::unique_ptr<std::byte[]> stack;
  Wait wait = Wait::none;
  unsigned mask = 0;  // of the lanes waited for
  const std::function<bool()>* condition = nullptr;
  uint3 index{};
  int predicate = 0;
  std::array<std::byte, 32> offered{};  // to the other lanes
  const Lanes* received = nullptr;
};

/// What groups of lanes exchanged. All threads that can go on do so before more groups are
/// released, so that as many results as there are lanes suffice.
struct Warp {
  std::array<Lanes, kWarp> results;
  std::size_t next = 0;
};

class Block {
 public:
  void run(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);
  void wait_for_block();
  void wait_until(const std::function<bool()>& condition);
  int predicates() const { return predicates_; }
  const Lanes& exchange(unsigned mask, const void* value, std::size_t bytes);
  Fiber& current() { return fibers_[now_]; }
  void* shared() { return shared_.data() + aligned_ + kSharedBegin; }
  SharedWindow window() { return {shared_.data() + aligned_, kSharedBegin + shared_bytes_}; }
  std::size_t thread() const { return now_; }
  Order order() const { return order_; }
  unsigned lane() const { return static_cast<unsigned>(now_ % kWarp); }
  void set_order(Order order) { order_ = order; }

 private:
  static void enter();
  void resume(std::size_t i);
  void yield() { switch_stacks(fibers_[now_].context, scheduler_); }
  bool release_block();
  bool release_warp(std::size_t warp);
  bool release_conditions();
  void set_turns();
  const std::vector<std::size_t>& turns();

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::size_t> turns_, warp_turns_;
  std::vector<std::byte> shared_;
  std::size_t aligned_ = 0, shared_bytes_ = 0;
  Context scheduler_;
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0, now_ = 0;
  int predicates_ = 0;
  Order order_ = order_of_environment();
  std::mt19937 random_{7};
};

Block the_block;

void Block::enter() {
  (*the_block.thread_)();
  the_block.current().wait = Wait::over;
  the_block.yield();
}

void Block::resume(std::size_t i) {
  now_ = i;
  threadIdx = fibers_[i].index;
  fibers_[i].wait = Wait::none;
  switch_stacks(scheduler_, fibers_[i].context);
}

/// Of a block that begins: in the order of the threads; `turns()` shuffles them at every look.
void Block::set_turns() {
  turns_.resize(count_);
  std::iota(turns_.begin(), turns_.end(), std::size_t{0});
  if (order_ == Order::descending) std::reverse(turns_.begin(), turns_.end());
}

const std::vector<std::size_t>& Block::turns() {
  if (order_ == Order::shuffled) std::shuffle(turns_.begin(), turns_.end(), random_);
  return turns_;
}

void Block::run(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  count_ = std::size_t{block.x} * block.y * block.z;
  if (count_ == 0 || count_ > kMaxThreads) die("a block of 0 or of more than 1,024 threads");
  thread_ = &thread;
  blockDim = block;
  if (fibers_.size() < count_) fibers_.resize(count_);
  warps_.resize((count_ + kWarp - 1) / kWarp);
  if (shared_bytes > kMaxSharedBytes) die("more shared memory than a block may have");
  shared_bytes_ = shared_bytes;
  shared_.assign(shared_bytes + kSharedBegin + kSharedWindow, std::byte{0xff});
  aligned_ = kSharedWindow - reinterpret_cast<std::uintptr_t>(shared_.data()) % kSharedWindow;
  warp_turns_.resize(warps_.size());
  std::iota(warp_turns_.begin(), warp_turns_.end(), std::size_t{0});
  if (order_ == Order::shuffled) std::shuffle(warp_turns_.begin(), warp_turns_.end(), random_);
  set_turns();
  begin_asynchronous();
  for (std::size_t i = 0; i < count_; ++i) {
    Fiber& fiber = fibers_[i];
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
    prepare(fiber.context, fiber.stack.get(), kStackBytes, &Block::enter);
    fiber.wait = Wait::none;
    fiber.predicate = 0;
    const auto n = static_cast<unsigned>(i);
    fiber.index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
  }
  for (;;) {
    bool progress = false;
    for (const std::size_t i : turns()) {
      if (fibers_[i].wait != Wait::none) continue;
      resume(i);
      progress = true;
    }
    if (progress) continue;
    for (const std::size_t w : warp_turns_) {
      progress |= release_warp(w);
      // In a shuffled order one warp runs ahead of the others as far as it can.
      if (progress && order_ == Order::shuffled) break;
    }
    // As late as can be in one order, at once in the others: so both a signal that comes too early
    // and one that nobody saw before the next show.
    if (!progress || order_ != Order::descending) progress |= release_conditions();
    // As late as can be: whoever does not wait for a copy does not see it.
    if (!progress) progress = land_one_copy();
    if (!progress) progress = release_block();
    if (progress) continue;
    const bool over = std::all_of(fibers_.begin(), fibers_.begin() + static_cast<long>(count_),
                                  [](const Fiber& f) { return f.wait == Wait::over; });
    if (over) return end_asynchronous();
    die("threads wait for others that never come: a barrier inside a branch, or a wrong mask");
  }
}

bool Block::release_block() {
  std::size_t waiting = 0;
  predicates_ = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (fibers_[i].wait == Wait::warp || fibers_[i].wait == Wait::condition) return false;
    if (fibers_[i].wait != Wait::block) continue;
    ++waiting;
    predicates_ += fibers_[i].predicate != 0;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    if (fibers_[i].wait == Wait::block) fibers_[i].wait = Wait::none;
  }
  return waiting > 0;
}

bool Block::release_warp(std::size_t warp) {
  bool released = false;
  const std::size_t first = warp * kWarp;
  for (std::size_t i = first; i < std::min(first + kWarp, count_); ++i) {
    if (fibers_[i].wait != Wait::warp) continue;
    const unsigned mask = fibers_[i].mask;
    bool complete = true;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) == 0) continue;
      if (first + l >= count_) die("a warp's mask names lanes that the block does not have");
      const Fiber& other = fibers_[first + l];
      complete &= other.wait == Wait::warp && other.mask == mask;
    }
    if (!complete) continue;
    Lanes& result = warps_[warp].results[warps_[warp].next++ % kWarp];
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) == 0) continue;
      Fiber& other = fibers_[first + l];
      result.bytes[l] = other.offered;
      other.received = &result;
      other.wait = Wait::none;
    }
    released = true;
  }
  return released;
}

bool Block::release_conditions() {
  bool released = false;
  for (std::size_t i = 0; i < count_; ++i) {
    if (fibers_[i].wait != Wait::condition || !(*fibers_[i].condition)()) continue;
    fibers_[i].wait = Wait::none;
    released = true;
  }
  return released;
}

void Block::wait_until(const std::function<bool()>& condition) {
  if (condition()) return;
  current().condition = &condition;
  current().wait = Wait::condition;
  yield();
}

void Block::wait_for_block() {
  current().wait = Wait::block;
  yield();
}

const Lanes& Block::exchange(unsigned mask, const void* value, std::size_t bytes) {
  Fiber& self = current();
  if ((mask >> lane() & 1) == 0) die("a lane that its own mask leaves out");
  std::memcpy(self.offered.data(), value, bytes);
  self.mask = mask;
  self.wait = Wait::warp;
  yield();
  return *self.received;
}

}  // namespace

void set_order(Order order) { the_block.set_order(order); }
void* dynamic_shared() { return the_block.shared(); }
int lane() { return static_cast<int>(the_block.lane()); }
void wait_until(const std::function<bool()>& condition) { the_block.wait_until(condition); }
SharedWindow shared_window() { return the_block.window(); }
std::size_t thread_of_block() { return the_block.thread(); }
Order order() { return the_block.order(); }
void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s (block %u,%u,%u thread %u,%u,%u)\n", what, blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  std::abort();
}
void misaligned() { die("an access of several bytes begins at no multiple of them"); }
void run_block(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  the_block.run(block, shared_bytes, thread);
}
const Lanes& exchange(unsigned mask, const void* value, std::size_t bytes) {
  return the_block.exchange(mask, value, bytes);
}

}  // namespace simt

void __syncthreads() { simt::the_block.wait_for_block(); }
int __syncthreads_count(int predicate) {
  simt::the_block.current().predicate = predicate;
  simt::the_block.wait_for_block();
  // Everybody reads before anybody waits at the next barrier: its count is made when all wait
  // there.
  return simt::the_block.predicates();
}
int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
unsigned __ballot_sync(unsigned mask, int predicate) {
  const char value = predicate != 0;
  const simt::Lanes& lanes = simt::exchange(mask, &value, 1);
  unsigned result = 0;
  for (unsigned l = 0; l < 32; ++l) {
    if (mask >> l & 1) result |= unsigned{lanes.bytes[l][0] != std::byte{0}} << l;
  }
  return result;
}
