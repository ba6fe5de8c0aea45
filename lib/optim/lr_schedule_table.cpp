#include <array>

#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim {

std::span<const LrScheduleRow> lr_schedule_table() {
  static const std::array kRows{
      schedules::constant(),    schedules::linear(), schedules::cosine(),       schedules::step(),
      schedules::exponential(), schedules::wsd(),    schedules::inverse_sqrt(),
  };
  return kRows;
}

}  // namespace llmtrain::optim
