#pragma once
/// Loops over independent work of this module, which a request to stop ends.

#include <omp.h>

#include "lib/base/parallel.hpp"
#include "lib/base/stop_request.hpp"

namespace llmtrain::data {

/// llmtrain::parallel_for with all threads that OpenMP has; a request to stop ends it between two
/// calls.
inline void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  llmtrain::parallel_for(count, omp_get_max_threads(), [&](std::size_t i) {
    stop_if_asked("preparing the data");
    body(i);
  });
}

}  // namespace llmtrain::data
