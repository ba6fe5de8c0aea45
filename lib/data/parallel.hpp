#pragma once
/// Loops over independent work with OpenMP, for this module's own source files.

#include <cstddef>
#include <exception>
#include <functional>

#include "lib/base/stop_request.hpp"

namespace llmtrain::data {

/// Calls body(i) for i in [0, count), several at a time. If calls throw, the exception of the
/// lowest i that was reached is thrown again here, after the others have ended. A request to stop
/// ends it between two calls.
inline void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::exception_ptr error;
  std::size_t error_index = count;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < count; ++i) {
    try {
      stop_if_asked("preparing the data");
      body(i);
    } catch (...) {
#pragma omp critical(llmtrain_data_parallel_for)
      if (i < error_index) {
        error_index = i;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace llmtrain::data
