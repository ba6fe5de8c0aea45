// Groups of ranks, and where they are.
#include "lib/mesh/rank_map.hpp"

#include <algorithm>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace llmtrain {

namespace {

using Groups = std::vector<std::vector<int>>;

Groups groups_named(const MeshShape& shape, std::string_view name) {
  for (const RankGroups& kind : rank_groups(shape)) {
    if (kind.name == name) return kind.groups;
  }
  return {};
}

MeshShape shape_of(int dp, int tp, int pp, int sp) { return {.sizes = {dp, tp, pp, sp}}; }

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("groups are those over which a mesh makes its communicators") {
  MeshShape shape = shape_of(8, 2, 1, 4);
  const std::map<std::string, std::string> of_mesh = {
      {"dp", "dp"},           {"tp", "tp"},
      {"pp", "pp"},           {"sp", "sp"},
      {"dp x sp", "dp*sp"},   {"slices", "owners"},
      {"ep", "experts"},      {"replicas", "replicas"},
      {"sp rows", "sp rows"}, {"sp heads", "sp heads"}};
  for (const int replicate : {1, 2, 4}) {
    for (const int ep : {1, 2, 4}) {
      for (const auto& order : {MeshShape{}.order, {Axis::sp, Axis::pp, Axis::dp, Axis::tp}}) {
        shape.dp_replicate = replicate;
        shape.ep = ep;
        shape.sp_ulysses = 2;
        shape.order = order;
        const std::vector<RankGroups> kinds = rank_groups(shape);
        CHECK(kinds.size() == 6u + 2 * (replicate > 1) + (ep > 1));
        std::vector<std::string> axes;
        for (const Axis axis : order) {
          if (axis != Axis::pp) axes.emplace_back(to_string(axis));
        }
        for (std::size_t i = 0; i < axes.size(); ++i) CHECK(kinds[i].name == axes[i]);
        std::map<std::string, std::vector<int>> made;
        const auto factory = [&](std::string_view name, const std::vector<int>& members, int i) {
          made[std::string(name)] = members;
          return make_meta_communicator(std::string(name), members, i, nullptr);
        };
        for (int rank = 0; rank < shape.world_size(); ++rank) {
          made.clear();
          const Mesh mesh(shape, rank, factory);
          for (const RankGroups& kind : kinds) {
            CAPTURE(kind.name);
            CAPTURE(rank);
            const std::vector<int>& expected = made.at(of_mesh.at(kind.name));
            CHECK(std::count(kind.groups.begin(), kind.groups.end(), expected) == 1);
            CHECK(kind.groups.size() * expected.size() == 64);
          }
        }
      }
    }
  }
  CHECK(rank_groups({}).empty());
}

TEST_CASE("a small layout is told in full") {
  CHECK(rank_map_text(shape_of(2, 2, 2, 1), assumed_places(8, 4)) ==
        "8 ranks = tp 2 x dp 2 x pp 2; neighbours share tp, then dp, then pp\n"
        "2 machines\n"
        "  ranks 0 to 3            node 0\n"
        "  ranks 4 to 7            node 1\n"
        "tp: 4 groups of 2 ranks at a distance of 1, each inside a machine\n"
        "  0 1                     node 0\n"
        "  2 3                     node 0\n"
        "  4 5                     node 1\n"
        "  6 7                     node 1\n"
        "dp: 4 groups of 2 ranks at a distance of 2, each inside a machine\n"
        "  0 2                     node 0\n"
        "  1 3                     node 0\n"
        "  4 6                     node 1\n"
        "  5 7                     node 1\n"
        "pp: 4 groups of 2 ranks at a distance of 4, each between machines, on up to 2\n"
        "  0 4                     node 0, node 1\n"
        "  1 5                     node 0, node 1\n"
        "  2 6                     node 0, node 1\n"
        "  3 7                     node 0, node 1\n");
  CHECK(rank_map_text({}, places_on({"here"})) ==
        "1 rank\n1 machine\n  rank 0                  here\n");
}

TEST_CASE("advice on tp where its ranks are on several machines, and on nothing else") {
  const auto advice = advice_on_tp(shape_of(2, 2, 1, 1), places_on({"a", "b", "a", "b"}));
  REQUIRE(advice);
  CHECK(advice->find("between a, b") != std::string::npos);
  CHECK(advice->find("parallelism.order") != std::string::npos);
  CHECK(!advice_on_tp(shape_of(2, 2, 1, 1), places_on({"a", "a", "b", "b"})));
  CHECK(!advice_on_tp(shape_of(4, 1, 1, 1), places_on({"a", "b", "a", "b"})));
  CHECK(advice_on_tp(shape_of(1, 6, 1, 1), assumed_places(6, 5)));
  // The second group alone.
  CHECK(advice_on_tp(shape_of(2, 2, 1, 1), places_on({"a", "a", "b", "c"})));
}

TEST_CASE("where a launcher has put ranks decides which groups cross machines") {
  // Ranks in turn: neighbours are never together.
  const std::string in_turn = rank_map_text(shape_of(2, 2, 1, 1), places_on({"a", "b", "a", "b"}));
  CHECK(in_turn.find("2 machines\n  rank 0                  a\n") != std::string::npos);
  CHECK(in_turn.find("tp: 2 groups of 2 ranks at a distance of 1, each between machines, on up to "
                     "2\n  0 1                     a, b\n") != std::string::npos);
  CHECK(in_turn.find("tp waits for every exchange") != std::string::npos);
  CHECK(in_turn.find("dp: 2 groups of 2 ranks at a distance of 2, each inside a machine\n"
                     "  0 2                     a\n") != std::string::npos);
  const std::string apart = rank_map_text(shape_of(2, 2, 1, 1), assumed_places(4, 2));
  CHECK(apart.find("dp: 2 groups of 2 ranks at a distance of 2, each between") !=
        std::string::npos);
  CHECK(apart.find("tp waits") == std::string::npos);
  // Three ranks a machine: the second pair is parted.
  const std::string parted = rank_map_text(shape_of(3, 2, 1, 1), assumed_places(6, 3));
  CHECK(parted.find("tp: 3 groups of 2 ranks at a distance of 1, 1 of them between machines") !=
        std::string::npos);
  CHECK(parted.find("  2 3                     node 0, node 1\n") != std::string::npos);
}

TEST_CASE("experts and slices have groups of their own") {
  MeshShape shape = shape_of(4, 2, 1, 1);
  shape.ep = 2;
  CHECK(groups_named(shape, "ep") == Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  shape.ep = 1;
  shape.dp_replicate = 2;
  CHECK(groups_named(shape, "slices") == Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  CHECK(groups_named(shape, "replicas") == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
}

TEST_CASE("sixteen thousand ranks are told in a page") {
  MeshShape shape = shape_of(128, 8, 16, 1);
  shape.ep = 8;
  const std::string text = rank_map_text(shape, assumed_places(16384, 8));
  CAPTURE(text);
  CHECK(lines_of(text) < 40);
  const std::string million = rank_map_text(shape_of(65536, 1, 16, 1), assumed_places(1 << 20, 8));
  CHECK(million.find("  0 65536 131072 ... 983040  node 0, node 8192, node 16384") !=
        std::string::npos);
  CHECK(text.find("16384 ranks = tp 8 x dp 128 x pp 16") == 0);
  CHECK(text.find("2048 machines\n  ranks 0 to 7            node 0\n") != std::string::npos);
  CHECK(text.find("  ... and 2045 more such ranges\n") != std::string::npos);
  CHECK(text.find("tp: 2048 groups of 8 ranks at a distance of 1, each inside a machine\n"
                  "  0 1 2 3 4 5 6 7         node 0\n") != std::string::npos);
  CHECK(text.find("dp: 128 groups of 128 ranks at a distance of 8, each between machines, on up to "
                  "128\n  0 8 16 ... 1016         node 0, node 1, node 2, ... (128 machines)\n") !=
        std::string::npos);
  CHECK(text.find("  ... and 125 more groups\n") != std::string::npos);
  CHECK(text.find("ep: 2048 groups of 8 ranks at a distance of 8, each between machines, on up to "
                  "8\n") != std::string::npos);
}

}  // namespace llmtrain
