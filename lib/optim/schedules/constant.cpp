#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

LrScheduleRow constant() {
  return {.name = "constant",
          .doc = "stays at its peak",
          .options = nullptr,
          .make = [](const LrScheduleChoice&, const Horizon&, std::int64_t) -> LrShape {
            return [](std::int64_t) { return 1.0; };
          }};
}

}  // namespace llmtrain::optim::schedules
