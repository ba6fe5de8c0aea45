#include "lib/mesh/mesh.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace llmtrain {

TEST_CASE("rank and coordinate are inverse for every order of the axes") {
  MeshShape shape{.sizes = {2, 3, 2, 2}};
  std::sort(shape.order.begin(), shape.order.end());
  do {
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      CHECK(rank_of(shape, coordinate_of(shape, rank)) == rank);
    }
  } while (std::next_permutation(shape.order.begin(), shape.order.end()));
}

TEST_CASE("the groups of an axis partition the world, innermost axis on neighbouring ranks") {
  const MeshShape shape{.sizes = {2, 4, 2, 1}};
  for (const Axis axis : shape.order) {
    std::multiset<int> seen;
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      groups.insert(group_of(shape, rank, {&axis, 1}));
    }
    for (const auto& group : groups) seen.insert(group.begin(), group.end());
    CHECK(seen.size() == static_cast<std::size_t>(shape.world_size()));
    CHECK(std::set<int>(seen.begin(), seen.end()).size() == seen.size());
  }
  const Axis tp = Axis::tp;
  CHECK(group_of(shape, 5, {&tp, 1}) == std::vector<int>{4, 5, 6, 7});
}

// dp 4 x sp 2 x tp 2 in two sets of slices; data ranks of a set are 0, 2, 4, 6 and 8, 10, 12, 14.
TEST_CASE("neighbours share the experts, and those with the same ones their gradients") {
  MeshShape shape{.sizes = {4, 2, 1, 2}};
  shape.ep = 2;
  std::map<std::string, std::vector<int>> groups;
  const auto factory = [&](std::string_view name, const std::vector<int>& members, int index) {
    groups[std::string(name)] = members;
    return make_meta_communicator(std::string(name), members, index, nullptr);
  };
  {
    const Mesh mesh(shape, 6, factory);
    CHECK(groups["experts"] == std::vector<int>{4, 6});
    CHECK(mesh.experts().rank() == 1);
    CHECK(groups["same experts"] == std::vector<int>{2, 6, 10, 14});
    CHECK(groups["expert owners"] == std::vector<int>{2, 6, 10, 14});
    CHECK(&mesh.data(DataHolders::same_experts) != &mesh.data());
  }
  shape.dp_replicate = 2;
  {
    const Mesh mesh(shape, 13, factory);
    CHECK(groups["experts"] == std::vector<int>{13, 15});
    CHECK(mesh.experts().rank() == 0);
    CHECK(groups["expert owners"] == std::vector<int>{9, 13});
    CHECK(groups["same experts"] == std::vector<int>{1, 5, 9, 13});
    CHECK(groups["replicas"] == std::vector<int>{5, 13});
  }
  shape.ep = 1;
  const Mesh mesh(shape, 13, factory);
  CHECK(mesh.experts().size() == 1);
  CHECK(&mesh.owners(DataHolders::same_experts) == &mesh.owners());
}

// sp 6 x tp 2: the ranks of sp with this one's tp are 1, 3, 5, 7, 9, 11.
TEST_CASE("neighbours along sp share heads, and those with the same heads rows") {
  MeshShape shape{.sizes = {1, 2, 1, 6}, .sp_ulysses = 3};
  CHECK(shape.head_sharers() == 3);
  CHECK(shape.row_groups() == 2);
  std::map<std::string, std::vector<int>> groups;
  const auto factory = [&](std::string_view name, const std::vector<int>& members, int index) {
    groups[std::string(name)] = members;
    return make_meta_communicator(std::string(name), members, index, nullptr);
  };
  {
    const Mesh mesh(shape, 9, factory);
    CHECK(groups["sp heads"] == std::vector<int>{7, 9, 11});
    CHECK(groups["sp rows"] == std::vector<int>{3, 9});
    CHECK(mesh.head_sharers().rank() == 1);
    CHECK(mesh.row_sharers().rank() == 1);
  }
  shape.sp_ulysses = 1;
  {
    const Mesh mesh(shape, 9, factory);
    CHECK(&mesh.row_sharers() == &mesh.axis(Axis::sp));
  }
  shape.sp_algo = SequenceSharing::ulysses;
  const Mesh mesh(shape, 9, factory);
  CHECK(shape.row_groups() == 1);
  CHECK(&mesh.head_sharers() == &mesh.axis(Axis::sp));
}

TEST_CASE("a process that runs alone refuses a layout of several ranks") {
  CHECK_NOTHROW(Mesh({}, 0, self_factory()));
  CHECK_THROWS_AS(Mesh({.sizes = {2, 1, 1, 1}}, 0, self_factory()), RecipeError);
}

}  // namespace llmtrain
