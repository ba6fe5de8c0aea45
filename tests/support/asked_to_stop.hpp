#pragma once
/// Somebody asks this process to stop, for a while.

#include <limits>

#include "lib/base/stop_request.hpp"

namespace llmtrain::test {

class AskedToStop {
 public:
  AskedToStop() { stop_from(0); }
  ~AskedToStop() { stop_from(std::numeric_limits<double>::infinity()); }
  AskedToStop(const AskedToStop&) = delete;
  AskedToStop& operator=(const AskedToStop&) = delete;
};

}  // namespace llmtrain::test
