#pragma once
/// Loops over independent work, for source files that OpenMP is on for.

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>

#ifndef _OPENMP
#error "link OpenMP::OpenMP_CXX, or this loop has one thread"
#endif

namespace llmtrain {

/// Calls body(i) for i in [0, count), in order, `threads` at a time. When one has thrown, no other
/// is begun; of several exceptions that of the lowest i is thrown again here.
inline void parallel_for(std::size_t count, int threads,
                         const std::function<void(std::size_t)>& body) {
  std::exception_ptr error;
  std::atomic<std::size_t> error_index = count;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::size_t i = 0; i < count; ++i) {
    if (error_index < i) continue;
    try {
      body(i);
    } catch (...) {
#pragma omp critical(llmtrain_parallel_for)
      if (i < error_index) {
        error_index = i;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace llmtrain
