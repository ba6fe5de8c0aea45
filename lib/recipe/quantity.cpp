#include "lib/recipe/quantity.hpp"

#include <cmath>

#include "lib/base/require.hpp"

namespace llmtrain::recipe {

std::uint64_t Span::in_steps(std::uint64_t total_steps, std::uint64_t tokens_per_step) const {
  switch (unit) {
    case Unit::steps:
      return count;
    case Unit::percent:
      return static_cast<std::uint64_t>(
          std::llround(percent / 100.0 * static_cast<double>(total_steps)));
    case Unit::tokens:
      require(tokens_per_step > 0, "a span in tokens needs the tokens of a step");
      return count / tokens_per_step + (count % tokens_per_step != 0);
  }
  fail("unknown unit of a span");
}

}  // namespace llmtrain::recipe
