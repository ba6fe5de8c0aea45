#pragma once
/// A bound on how deep JSON from outside is nested.

#include <string_view>

#include "lib/base/require.hpp"

namespace llmtrain {

/// A callback for nlohmann's parser. What walks a value (comparison, printing) recurses as deep as
/// it is nested: far enough, a file could end the process.
struct JsonDepth {
  static constexpr int kMax = 32;
  std::string_view name;  // of the file
  std::string_view remedy;

  template <class Event, class Json>
  bool operator()(int depth, Event, const Json&) const {
    require<DataError>(depth <= kMax, "{}: nested deeper than {} levels; {}", name, kMax, remedy);
    return true;
  }
};

}  // namespace llmtrain
