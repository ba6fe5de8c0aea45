#include "lib/train/shared_memory.hpp"

#include <map>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

std::vector<RankNeed> needs_of_all(const Peers& peers, std::uint64_t bytes, std::uint64_t has,
                                   std::string_view site) {
  const auto hosts = peers.texts_of_all(plan::machine_facts().host, site);
  const auto all_bytes = peers.of_all(bytes, site);
  const auto all_have = peers.of_all(has, site);
  std::vector<RankNeed> needs;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    needs.push_back({hosts[rank], all_bytes[rank], all_have[rank]});
  }
  return needs;
}

}  // namespace

std::optional<std::string> shared_problem(std::span<const RankNeed> ranks,
                                          std::string_view of_what) {
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
    return fmt::format("the {} ranks on {} need {} of {} together, but it has {}", machine.ranks,
                       host, format_bytes(machine.bytes), of_what, format_bytes(machine.has));
  }
  return std::nullopt;
}

void check_shared_memory(const RunPlan& planned, const Recipe& recipe, const Peers& peers) {
  const bool shares = planned.plan.device == DeviceKind::cpu && planned.limit_bytes &&
                      !recipe.run.memory_limit().value;
  if (!shares || peers.world().place().size == 1) return;
  const auto problem = shared_problem(
      needs_of_all(peers, planned.plan.extent_bytes(), *planned.limit_bytes, "memory of machines"),
      "memory");
  require<DoesNotFitError>(!problem,
                           "{}; start fewer ranks there, divide more among them "
                           "(parallelism.zero: 3), lower training.micro_batch_size (now {}), or "
                           "set activation_checkpoint.mode: full",
                           problem.value_or(""), recipe.training.micro_batch_size());
}

namespace {

std::string host_contents(const plan::Plan& plan) {
  if (!plan.device_activations) return "updates";
  return plan.host_updates ? "updates and activations" : "activations";
}

std::string remedy_on_host(const plan::Plan& plan) {
  std::string_view updates;
  if (plan.host_updates) {
    updates = plan.offloaded_bytes > 0
                  ? "lower offload.buffer, of which a rank has two, one of them pinned"
                  : "leave offload.parameters, offload.master or offload.optimizer: host out, keep "
                    "them in a file (nvme), or divide more among ranks (parallelism.zero: 1)";
  }
  if (!plan.device_activations) return std::string(updates);
  const std::string_view activations =
      plan.activation_file_bytes > 0
          ? "lower offload.activation_buffer, which is pinned"
          : "name fewer of offload.activations, set activation_checkpoint.mode: full and [block], "
            "or keep them in a file (offload.activation_place: nvme)";
  return fmt::format("{}{}{}", activations, updates.empty() ? "" : "; ", updates);
}

}  // namespace

void check_host_memory(const plan::Plan& plan, const Peers& peers) {
  if (!plan.host_updates && !plan.device_activations) return;
  const std::uint64_t bytes =
      plan.host_update_bytes() + plan.host_activation_bytes() + plan.pinned_bytes;
  const std::uint64_t has = physical_memory_bytes();
  const std::string what = host_contents(plan);
  const std::string remedy = remedy_on_host(plan);
  require<DoesNotFitError>(bytes <= has, "{} on the host need {} of its memory, but it has {}; {}",
                           what, format_bytes(bytes), format_bytes(has), remedy);
  if (peers.world().place().size == 1) return;
  const auto problem = shared_problem(needs_of_all(peers, bytes, has, "memory of hosts"),
                                      fmt::format("memory for {} on the host", what));
  require<DoesNotFitError>(!problem, "{}; start fewer ranks there, or {}", problem.value_or(""),
                           remedy);
}

void check_shared_disk(const plan::Plan& plan, const std::filesystem::path& directory,
                       const Peers& peers) {
  if (peers.world().place().size == 1) return;
  const std::uint64_t bytes = plan.offloaded_bytes + plan.activation_file_bytes;
  const auto problem =
      shared_problem(needs_of_all(peers, bytes, free_disk_bytes(directory), "disks of machines"),
                     fmt::format("disk in {}", directory.string()));
  require<DoesNotFitError>(!problem, "{}; free space there, or choose another offload.path",
                           problem.value_or(""));
}

}  // namespace llmtrain::train
