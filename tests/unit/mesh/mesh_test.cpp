#include "lib/mesh/mesh.hpp"

#include <algorithm>
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

TEST_CASE("a process that runs alone refuses a layout of several ranks") {
  CHECK_NOTHROW(Mesh({}, 0, self_factory()));
  CHECK_THROWS_AS(Mesh({.sizes = {2, 1, 1, 1}}, 0, self_factory()), RecipeError);
}

}  // namespace llmtrain
