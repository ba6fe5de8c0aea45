#include "lib/train/shared_memory.hpp"

#include <map>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

std::optional<std::string> shared_memory_problem(std::span<const RankNeed> ranks) {
  struct Machine {
    int ranks = 0;
    std::uint64_t bytes = 0, has = 0;
  };
  std::map<std::string_view, Machine> machines;
  for (const RankNeed& rank : ranks) {
    Machine& machine = machines[rank.host];
    ++machine.ranks;
    machine.bytes += rank.bytes;
    machine.has = rank.machine_bytes;
  }
  for (const auto& [host, machine] : machines) {
    if (machine.ranks == 1 || machine.bytes <= machine.has) continue;
    return fmt::format("the {} ranks on {} need {} of memory together, but it has {}",
                       machine.ranks, host, format_bytes(machine.bytes), format_bytes(machine.has));
  }
  return std::nullopt;
}

void check_shared_memory(const RunPlan& planned, const Recipe& recipe, const Peers& peers) {
  const bool shares = planned.plan.device == DeviceKind::cpu && planned.limit_bytes &&
                      !recipe.run.memory_limit().value;
  if (!shares || peers.world().place().size == 1) return;
  constexpr std::string_view kSite = "memory of machines";
  const auto hosts = peers.texts_of_all(plan::machine_facts().host, kSite);
  const auto bytes = peers.of_all(planned.plan.extent_bytes(), kSite);
  const auto limits = peers.of_all(*planned.limit_bytes, kSite);
  std::vector<RankNeed> needs;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    needs.push_back({hosts[rank], bytes[rank], limits[rank]});
  }
  const std::optional<std::string> problem = shared_memory_problem(needs);
  require<DoesNotFitError>(!problem,
                           "{}; start fewer ranks there, divide more among them "
                           "(parallelism.zero: 3), lower training.micro_batch_size (now {}), or "
                           "set activation_checkpoint.mode: full",
                           problem.value_or(""), recipe.training.micro_batch_size());
}

}  // namespace llmtrain::train
