// What ranks of one machine need together.
#include "lib/train/shared_memory.hpp"

#include <doctest/doctest.h>

namespace llmtrain::train {

TEST_CASE("ranks that fit alone are refused where their machine cannot hold them together") {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  CHECK_FALSE(shared_problem(std::vector<RankNeed>{{"a", 3 * gib, 4 * gib}}, "memory"));
  const std::vector<RankNeed> fits{
      {"a", 2 * gib, 4 * gib}, {"a", 2 * gib, 4 * gib}, {"b", 3 * gib, 4 * gib}};
  CHECK_FALSE(shared_problem(fits, "memory"));
  // Uneven stages: the fullest alone says nothing.
  const std::vector<RankNeed> uneven{{"b", 1 * gib, 4 * gib},
                                     {"a", 3 * gib, 4 * gib},
                                     {"b", 1 * gib, 4 * gib},
                                     {"a", 2 * gib, 4 * gib}};
  CHECK(shared_problem(uneven, "memory") ==
        "the 2 ranks on a need 5.00 GiB of memory together, but it has 4.00 GiB");
  const std::vector<RankNeed> many(8, {"node1", 11 * gib, 23 * gib});
  CHECK(shared_problem(many, "memory") ==
        "the 8 ranks on node1 need 88.00 GiB of memory together, but it has 23.00 GiB");
}

TEST_CASE("a host without the memory that is taken of it is named before the run begins") {
  const auto world = World::join({});
  const Peers peers(*world, "recipe");
  plan::Plan plan;
  check_host_memory(plan, peers);
  plan.host_updates = optim::HostUpdateFacts{.memory_bytes = 1 << 20, .pinned_bytes = 1 << 20};
  check_host_memory(plan, peers);
  plan.pinned_bytes = physical_memory_bytes() - (1 << 20);
  CHECK_THROWS_AS(check_host_memory(plan, peers), DoesNotFitError);
  const auto problem = [&] {
    try {
      check_host_memory(plan, peers);
    } catch (const DoesNotFitError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(problem().starts_with("updates on the host need "));
  CHECK(problem().find("keep them in a file (nvme)") != std::string::npos);
  plan.offloaded_bytes = 1 << 20;
  CHECK(problem().find("; lower offload.buffer") != std::string::npos);
  plan.pinned_bytes = 0;
  plan.device_activations = engine::DeviceActivationFacts{.pinned_bytes = 1 << 20};
  CHECK(problem().empty());
  plan.device_activations->pinned_bytes = physical_memory_bytes() - (1 << 20);
  CHECK(problem().starts_with("updates and activations on the host need "));
  plan.host_updates.reset();
  CHECK(problem().empty());
  plan.pinned_bytes = 2 << 20;
  CHECK(problem().starts_with("activations on the host need "));
  CHECK(problem().find("; name fewer of offload.activations") != std::string::npos);
}

}  // namespace llmtrain::train
