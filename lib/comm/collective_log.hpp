#pragma once
/// The last collectives of a process, over all its groups.

#include <array>
#include <cstdint>
#include <vector>

#include "lib/comm/communicator.hpp"

namespace llmtrain {

/// Of the one thread that issues collectives.
class CollectiveLog {
 public:
  static constexpr std::size_t kLength = 64;

  void note(const CollectiveRecord& record) { records_[count_++ % kLength] = record; }
  /// Oldest first.
  std::vector<CollectiveRecord> last() const {
    std::vector<CollectiveRecord> last;
    for (std::uint64_t i = count_ > kLength ? count_ - kLength : 0; i < count_; ++i) {
      last.push_back(records_[i % kLength]);
    }
    return last;
  }

 private:
  std::array<CollectiveRecord, kLength> records_;
  std::uint64_t count_ = 0;
};

}  // namespace llmtrain
