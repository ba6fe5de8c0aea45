#include "lib/plan/assumptions.hpp"

#include <fmt/format.h>

namespace llmtrain::plan {

std::vector<std::string> assumptions_of_memory(const Plan& plan) {
  if (plan.mesh.ep == 1) return {};
  if (plan.mesh.ep_room > 0) {
    return {
        fmt::format("routers send a rank's experts at most {:g} times their even share of the "
                    "rows of each rank; a step with more ends the run (parallelism.ep_room)",
                    plan.mesh.ep_room)};
  }
  return {"nothing of routers: there is room for all rows to come to one rank's experts"};
}

std::vector<std::string> assumptions_of_time(const Plan& plan) {
  std::vector<std::string> all;
  if (plan.mesh.ep > 1) all.emplace_back("experts get as many rows each");
  if (plan.mesh.world_size() > 1) {
    all.emplace_back("no rank is slower than another, and nobody else uses the network");
    all.emplace_back(plan.device == DeviceKind::cuda
                         ? "collectives go on behind kernels, one at a time, until the step waits "
                           "for them; tp, sp and ep wait at once"
                         : "collectives take the time of the cores that compute");
    all.emplace_back(
        "what the ranks of a run tell each other beside them is not in it: a step's outcome and "
        "requests, 80 B from each to each");
  }
  all.emplace_back("data are there when they are needed; evaluations and saves are not counted");
  return all;
}

}  // namespace llmtrain::plan
