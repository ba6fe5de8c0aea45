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

}  // namespace llmtrain::kernels
