#pragma once
/// Parallel loops over blocks. Who computes an element may depend on the number of threads; its
/// value must not.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <omp.h>
#include <thread>
#include <vector>

#include <hwy/cache_control.h>

namespace llmtrain::kernels {

/// Calls f(begin, end) for every block [begin, end) of [0, count); neighbouring blocks go to the
/// same thread. f must not throw.
template <class F>
void parallel_blocks(int threads, std::int64_t count, std::int64_t block, const F& f) {
  const std::int64_t blocks = (count + block - 1) / block;
  const auto run = [&](std::int64_t b) { f(b * block, std::min(count, (b + 1) * block)); };
  if (threads <= 1 || blocks <= 1) {
    for (std::int64_t b = 0; b < blocks; ++b) run(b);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t b = 0; b < blocks; ++b) run(b);
}

/// Calls f(slot, task) for every task in [0, count), one at a time per slot < threads, for work in
/// memory of its own per thread. A thread that is done takes the next task, so that cores may run
/// at unequal speeds. f must not throw.
template <class F>
void parallel_tasks(int threads, std::int64_t count, const F& f) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t t = 0; t < count; ++t) f(0, t);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t t = 0; t < count; ++t) f(omp_get_thread_num(), t);
}

/// Numbered tasks that the threads of a team take in order, where a task may wait for earlier ones:
/// these have been taken, so that somebody works on them. Cheaper than to end a parallel loop where
/// the next one begins, because threads that are done need not wait for the slowest.
class TaskOrder {
 public:
  explicit TaskOrder(int threads) : hands_(static_cast<std::size_t>(threads)) {}

  /// Thread `slot` begins to take tasks.
  void enter(int slot) { hand(slot) = 0; }
  /// The next task for thread `slot`, whose last one is done. Until the new one is in its hand, the
  /// old one is, so that nobody believes the new one done.
  std::int64_t take(int slot) {
    const std::int64_t task = next_.fetch_add(1);
    hand(slot) = task;
    return task;
  }
  /// Thread `slot` takes no more.
  void leave(int slot) { hand(slot) = kNone; }

  /// Waits until tasks [0, end) are done. `slot` holds a later one.
  void wait_for(std::int64_t end, int slot) const {
    for (std::size_t other = 0; other < hands_.size(); ++other) {
      if (other == static_cast<std::size_t>(slot)) continue;
      for (int looks = 0; hands_[other].task < end; ++looks) {
        constexpr int kSpins = 2000;  // some 20 us; then whoever is waited for may need this core
        if (looks < kSpins) {
          hwy::Pause();
        } else {
          std::this_thread::yield();
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  struct alignas(64) Hand {
    std::atomic<std::int64_t> task = kNone;
  };
  std::atomic<std::int64_t>& hand(int slot) { return hands_[static_cast<std::size_t>(slot)].task; }

  std::vector<Hand> hands_;
  alignas(64) std::atomic<std::int64_t> next_ = 0;
};

/// Calls f(slot, task, order) for tasks 0, 1, 2 ... count - 1, begun in this order; f may call
/// order.wait_for(end, slot) with end <= task. f must not throw.
template <class F>
void parallel_in_order(int threads, std::int64_t count, const F& f) {
  TaskOrder order(std::max(1, threads));
  const auto run = [&](int slot) {
    order.enter(slot);
    for (std::int64_t task; (task = order.take(slot)) < count;) f(slot, task, order);
    order.leave(slot);
  };
  if (threads <= 1 || count <= 1) return run(0);
#pragma omp parallel num_threads(threads)
  run(omp_get_thread_num());
}

}  // namespace llmtrain::kernels
