#pragma once
/// The rows of the learning-rate table, one per source file of the same name, and what several
/// share.

#include "lib/optim/lr_schedule.hpp"

namespace llmtrain::optim::schedules {

LrScheduleRow constant();
LrScheduleRow linear();
LrScheduleRow cosine();
LrScheduleRow step();
LrScheduleRow exponential();
LrScheduleRow wsd();
LrScheduleRow inverse_sqrt();

/// Of schedules that fall towards an end value.
struct EndOptions : recipe::Section {
  recipe::Key<double> min_lr_ratio{this, "min_lr_ratio", 0.1,
                                   "where the learning rate ends, as a fraction of optimizer.lr",
                                   recipe::between(0, 1)};
};

}  // namespace llmtrain::optim::schedules
