#include "lib/train/resilience_section.hpp"

namespace llmtrain::train {

void ResilienceSection::validate(recipe::Issues& issues) const {
  // By value, not by who gave it: a resolved recipe names every key.
  const auto idle = [&](const recipe::ValueEntry& key, std::string_view why) {
    if (key.value_text() != key.default_text()) issues.add(key, std::string(why), "leave it out");
  };
  if (on_loss_spike() == OnBadStep::ignore) {
    idle(loss_spike_factor, "does nothing while on_loss_spike is ignore");
    idle(loss_spike_window, "does nothing while on_loss_spike is ignore");
  }
  if (!goes_back()) idle(max_rollbacks, "does nothing: no key takes the run back");
}

}  // namespace llmtrain::train
