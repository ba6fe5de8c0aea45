#pragma once
/// What this machine is, as far as the system says.

#include "lib/plan/hardware_profile.hpp"

namespace llmtrain::plan {

MachineFacts machine_facts();

}  // namespace llmtrain::plan
