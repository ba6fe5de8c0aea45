#include "lib/train/checkpoint_section.hpp"

#include <fmt/format.h>

namespace llmtrain::train {

namespace {

// Of two of one unit; steps and seconds cannot be compared.
bool is_no_smaller(const recipe::Interval& a, const recipe::Interval& b) {
  if (a.unit != b.unit) return false;
  return a.unit == recipe::Interval::Unit::steps ? a.count >= b.count : a.seconds >= b.seconds;
}

}  // namespace

void CheckpointSection::validate(recipe::Issues& issues) const {
  // By value, not by who gave it: a resolved recipe names every key.
  const auto is_default = [](const recipe::ValueEntry& key) {
    return key.value_text() == key.default_text();
  };
  if (!is_default(async_share) && !async()) {
    issues.add(async_share, "does nothing without checkpoint.async",
               "leave it out, or set checkpoint.async: true");
  }
  if (!local.directory()) {
    for (const recipe::ValueEntry* key :
         {static_cast<const recipe::ValueEntry*>(&local.interval),
          static_cast<const recipe::ValueEntry*>(&local.keep_latest)}) {
      if (is_default(*key)) continue;
      issues.add(*key, "does nothing without checkpoint.local.directory", "leave it out");
    }
    return;
  }
  const recipe::Interval often = local.interval();
  if (interval() && is_no_smaller(often, *interval())) {
    issues.add(local.interval,
               fmt::format("{} is no smaller than checkpoint.interval {}: nothing would be saved "
                           "there",
                           local.interval.value_text(), interval.value_text()),
               "save there more often");
  } else if (keep_every() > 0 && often.unit == recipe::Interval::Unit::steps &&
             often.count % keep_every() == 0) {
    issues.add(
        local.interval,
        fmt::format("its steps are multiples of checkpoint.keep_every {}, which are saved in "
                    "run.output_dir: nothing would be saved there",
                    keep_every().value),
        "save there more often");
  }
}

}  // namespace llmtrain::train
