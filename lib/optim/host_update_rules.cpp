#include "lib/optim/host_update_rules.hpp"

#include <algorithm>
#include <array>

namespace llmtrain::optim {

namespace {

struct Obstacle {
  std::string_view optimizer, why;
};

constexpr std::array<Obstacle, 1> kObstacles{
    {{"muon", "multiplies matrices, which a CPU does slowly and with other bits"}}};

}  // namespace

std::string_view obstacle_to_host_updates(const OptimizerRow& optimizer) {
  const auto found = std::ranges::find(kObstacles, optimizer.name, &Obstacle::optimizer);
  return found == kObstacles.end() ? std::string_view() : found->why;
}

}  // namespace llmtrain::optim
