#include "lib/train/device_links.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

namespace {

using parallel::GpuCollectives;

// On this rank; empty if nothing is against NCCL.
std::string objection(const RunDevice& device, const Recipe& recipe) {
  if (recipe.run.determinism() == kernels::Determinism::layout) {
    return "run.determinism is layout";
  }
  if (!device.nccl_problem().empty()) return device.nccl_problem();
  const int ranks = device.share().ranks;
  return ranks > 1 ? fmt::format("{} ranks share a GPU", ranks) : "";
}

// "rank 3: libnccl.so.2 is not there" of the first rank that objects.
std::optional<std::string> first_objection(World& world, std::string_view mine) {
  std::vector<int> ranks(static_cast<std::size_t>(world.place().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto all = world.make_group("device links", ranks, world.place().rank);
  const std::vector<std::string> texts = all->gather_texts(mine, "what speaks against NCCL");
  const auto first = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first == texts.end()) return std::nullopt;
  return fmt::format("rank {}: {}", first - texts.begin(), *first);
}

}  // namespace

CommunicatorFactory communicators_of(World& world, const RunDevice& device, const Recipe& recipe) {
  if (device.backend() == nullptr || world.place().size == 1) return world_factory(world);
  const GpuCollectives how = recipe.parallelism.gpu_collectives();
  if (how == GpuCollectives::host) {
    log::info("ranks exchange through host memory");
    return world_factory(world, device.device());
  }
  const auto problem = first_objection(world, objection(device, recipe));
  if (!problem) {
    log::info("ranks exchange by NCCL");
    return world_factory(world, device.device(), world.watch_devices([&world](const auto& what) {
      end_all_but_lost(world, what);
    }));
  }
  require<DeviceError>(how != GpuCollectives::nccl,
                       "parallelism.gpu_collectives is nccl, which cannot be ({}); host exchanges "
                       "through host memory",
                       *problem);
  log::info("ranks exchange through host memory ({})", *problem);
  return world_factory(world, device.device());
}

}  // namespace llmtrain::train
