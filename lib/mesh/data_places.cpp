#include "lib/mesh/data_places.hpp"

#include <algorithm>

namespace llmtrain {

std::vector<DataPlace> data_places(const MeshShape& shape) {
  constexpr std::array kData{Axis::dp, Axis::sp};
  std::vector<int> ranks = group_of(shape, 0, kData);
  std::sort(ranks.begin(), ranks.end());
  const int neighbours = shape[Axis::dp] / shape.dp_replicate;
  // Ranks so far of each set of slices, and with each part of the experts.
  std::vector<int> of_set(static_cast<std::size_t>(shape.dp_replicate));
  std::vector<int> with_experts(static_cast<std::size_t>(shape.ep));
  std::vector<DataPlace> places;
  for (const int rank : ranks) {
    const MeshCoordinate at = coordinate_of(shape, rank);
    DataPlace place{.dp = at[static_cast<int>(Axis::dp)], .sp = at[static_cast<int>(Axis::sp)]};
    place.data = place.dp + shape[Axis::dp] * place.sp;
    place.owner = place.dp % neighbours + neighbours * place.sp;
    place.replica = place.dp / neighbours;
    const int number = of_set[static_cast<std::size_t>(place.replica)]++;
    const int among = with_experts[static_cast<std::size_t>(number % shape.ep)]++;
    place.expert_owner = shape.ep > 1 ? number / shape.ep : place.owner;
    place.same_experts = shape.ep > 1 ? among : place.data;
    places.push_back(place);
  }
  return places;
}

}  // namespace llmtrain
