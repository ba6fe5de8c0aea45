#include "lib/mesh/data_places.hpp"

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("places among data ranks are those in the groups of each rank's mesh") {
  const auto factory = [](std::string_view name, const std::vector<int>& members, int index) {
    return make_meta_communicator(std::string(name), members, index, nullptr);
  };
  constexpr std::array kOutside{Axis::sp, Axis::tp, Axis::pp, Axis::dp};
  for (const MeshShape& shape :
       {MeshShape{}, MeshShape{.sizes = {4, 2, 1, 3}}, MeshShape{.sizes = {8, 1, 2, 1}, .ep = 2},
        MeshShape{.sizes = {4, 2, 1, 2}, .dp_replicate = 2},
        MeshShape{.sizes = {8, 1, 1, 2}, .dp_replicate = 2, .ep = 4},
        MeshShape{.sizes = {4, 2, 1, 2},
        .order = {Axis::dp, Axis::tp, Axis::sp, Axis::pp},
        .dp_replicate = 2,
        .ep = 2},
        MeshShape{.sizes = {2, 1, 2, 4}, .order = kOutside, .ep = 4}}) {
    const std::vector<DataPlace> places = data_places(shape);
    CHECK(std::ssize(places) == shape[Axis::dp] * shape[Axis::sp]);
    for (const DataPlace& place : places) {
      for (int tp = 0; tp < shape[Axis::tp]; ++tp) {
        MeshCoordinate at{};
        at[static_cast<int>(Axis::dp)] = place.dp;
        at[static_cast<int>(Axis::sp)] = place.sp;
        at[static_cast<int>(Axis::tp)] = tp;
        const int rank = rank_of(shape, at);
        CAPTURE(rank);
        const Mesh mesh(shape, rank, factory);
        CHECK(place.data == mesh.data().rank());
        CHECK(place.same_experts == mesh.data(DataHolders::same_experts).rank());
        CHECK(place.owner == mesh.owners().rank());
        CHECK(place.expert_owner == mesh.owners(DataHolders::same_experts).rank());
        CHECK(place.replica == mesh.replicas().rank());
      }
    }
  }
}

}  // namespace llmtrain
