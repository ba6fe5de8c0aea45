#pragma once
/// Parallel loops over blocks of fixed size: who computes a block depends on the number of threads,
/// what is in it does not.

#include <algorithm>
#include <cstdint>

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

/// Calls f(slot, task) for every task in [0, count), one at a time per slot < threads: for work in
/// memory of its own per thread. f must not throw.
template <class F>
void parallel_slots(int threads, std::int64_t count, const F& f) {
  const auto slots = static_cast<std::int64_t>(std::max(1, threads));
  parallel_blocks(threads, std::min(slots, count), 1, [&](std::int64_t slot, std::int64_t) {
    const std::int64_t used = std::min(slots, count);
    for (std::int64_t t = slot * count / used; t < (slot + 1) * count / used; ++t) {
      f(static_cast<int>(slot), t);
    }
  });
}

}  // namespace llmtrain::kernels
