#include "lib/plan/network.hpp"

#include <numeric>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"

namespace llmtrain::plan {

namespace {

// Links without latency: 80 B/s in a machine of four, 10 B/s to another one.
constexpr Network kNetwork{.ranks_per_node = 4, .node = {0, 80}, .fabric = {0, 10}};

CollectiveGroup group_of(Collective kind, std::vector<int> members, std::uint64_t bytes) {
  return {.kind = kind, .group = "g", .members = std::move(members), .bytes = bytes, .count = 1};
}

}  // namespace

TEST_CASE("what ranks send in a collective is the least that is possible") {
  const auto sent = [](Collective kind, int ranks, std::uint64_t bytes) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    return group_of(kind, members, bytes).sent_bytes_of_call();
  };
  CHECK(sent(Collective::all_reduce, 4, 100) == 150);
  CHECK(sent(Collective::all_gather, 4, 100) == 75);
  CHECK(sent(Collective::reduce_scatter, 5, 100) == 80);
  CHECK(sent(Collective::all_to_all, 2, 100) == 50);
  CHECK(sent(Collective::send, 4, 100) == 100);
  CHECK(sent(Collective::recv, 4, 100) == 0);
}

TEST_CASE("a group within a machine takes its links") {
  CHECK(link_name(kNetwork, {4, 5, 7}) == "node");
  CHECK(link_name(kNetwork, {3, 4}) == "fabric");
  CHECK(seconds_of(kNetwork, group_of(Collective::all_reduce, {0, 1, 2, 3}, 80)) ==
        test::relative(1.5));
}

TEST_CASE("a group over machines crosses through as many adapters as it has ranks in each") {
  // Neighbours of four machines: one adapter each.
  CHECK(seconds_of(kNetwork, group_of(Collective::all_gather, {0, 4, 8, 12}, 80)) ==
        test::relative(6));
  // All of two machines: four adapters each.
  CHECK(seconds_of(kNetwork, group_of(Collective::all_gather, {0, 1, 2, 3, 4, 5, 6, 7}, 80)) ==
        test::relative(70.0 / 40));
  // Each rank's half for the other machine goes through its own adapter.
  CHECK(seconds_of(kNetwork, group_of(Collective::all_to_all, {0, 1, 2, 3, 4, 5, 6, 7}, 80)) ==
        test::relative(4));
  CHECK(seconds_of(kNetwork, group_of(Collective::recv, {0, 4}, 80)) == test::relative(8));
}

TEST_CASE("every round of messages has its latency") {
  constexpr Network kSlow{.ranks_per_node = 4, .node = {1, 1e9}, .fabric = {5, 1e9}};
  CHECK(seconds_of(kSlow, group_of(Collective::all_reduce, {0, 1, 2, 3}, 1)) ==
        test::relative(2, 1e-6));
  CHECK(seconds_of(kSlow, group_of(Collective::barrier, {0, 4}, 0)) == test::relative(5));
}

}  // namespace llmtrain::plan
