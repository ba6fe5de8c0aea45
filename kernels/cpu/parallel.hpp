#pragma once
/// Parallel loops over blocks. Who computes an element may depend on the number of threads; its
/// value must not.

#include <algorithm>
#include <cstdint>
#include <omp.h>

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

}  // namespace llmtrain::kernels
