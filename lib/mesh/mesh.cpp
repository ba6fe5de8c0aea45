#include "lib/mesh/mesh.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain {

std::string_view to_string(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> kNames{"dp", "tp", "pp", "sp"};
  return kNames[static_cast<int>(axis)];
}

int MeshShape::world_size() const {
  int n = 1;
  for (const int size : sizes) n *= size;
  return n;
}

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  require(0 <= rank && rank < shape.world_size(), "rank {} of a world of {}", rank,
          shape.world_size());
  MeshCoordinate coordinate{};
  for (const Axis axis : shape.order) {
    coordinate[static_cast<int>(axis)] = rank % shape[axis];
    rank /= shape[axis];
  }
  return coordinate;
}

int rank_of(const MeshShape& shape, const MeshCoordinate& coordinate) {
  int rank = 0;
  int stride = 1;
  for (const Axis axis : shape.order) {
    const int index = coordinate[static_cast<int>(axis)];
    require(0 <= index && index < shape[axis], "coordinate {} on axis {} of size {}", index,
            to_string(axis), shape[axis]);
    rank += index * stride;
    stride *= shape[axis];
  }
  return rank;
}

std::vector<int> group_of(const MeshShape& shape, int rank, std::span<const Axis> axes) {
  std::vector<int> members{};
  MeshCoordinate coordinate = coordinate_of(shape, rank);
  int count = 1;
  for (const Axis axis : axes) count *= shape[axis];
  for (int i = 0; i < count; ++i) {
    int rest = i;
    for (const Axis axis : axes) {
      coordinate[static_cast<int>(axis)] = rest % shape[axis];
      rest /= shape[axis];
    }
    members.push_back(rank_of(shape, coordinate));
  }
  return members;
}

namespace {

std::unique_ptr<Communicator> make_group(const MeshShape& shape, int rank,
                                         std::span<const Axis> axes, std::string_view name,
                                         const CommunicatorFactory& factory) {
  const std::vector<int> members = group_of(shape, rank, axes);
  const auto self = std::find(members.begin(), members.end(), rank);
  return factory(name, members, static_cast<int>(self - members.begin()));
}

}  // namespace

Mesh::Mesh(const MeshShape& shape, int rank, const CommunicatorFactory& factory)
    : shape_(shape), rank_(rank), coordinate_(coordinate_of(shape, rank)) {
  for (int a = 0; a < kNumAxes; ++a) {
    const Axis axis{static_cast<std::uint8_t>(a)};
    axes_[a] = make_group(shape, rank, {&axis, 1}, to_string(axis), factory);
  }
  constexpr std::array kData{Axis::dp, Axis::sp};
  data_ = make_group(shape, rank, kData, "dp*sp", factory);
  make_replicas(factory);
  constexpr std::array kModel{Axis::tp, Axis::pp};
  model_ = make_group(shape, rank, kModel, "tp*pp", factory);
  world_ = make_group(shape, rank, shape.order, "world", factory);
}

void Mesh::make_replicas(const CommunicatorFactory& factory) {
  if (shape_.dp_replicate == 1) {
    replicas_ = factory("replicas", {rank_}, 0);
    return;
  }
  const int neighbours = size(Axis::dp) / shape_.dp_replicate;
  const auto group = [&](std::string_view name, const auto& belongs) {
    constexpr std::array kData{Axis::dp, Axis::sp};
    std::vector<int> members;
    int index = 0;
    for (const int other : group_of(shape_, rank_, kData)) {
      if (!belongs(coordinate_of(shape_, other))) continue;
      if (other == rank_) index = static_cast<int>(members.size());
      members.push_back(other);
    }
    return factory(name, members, index);
  };
  const auto at = [](const MeshCoordinate& of, Axis axis) { return of[static_cast<int>(axis)]; };
  owners_ = group("owners", [&](const MeshCoordinate& other) {
    return at(other, Axis::dp) / neighbours == index(Axis::dp) / neighbours;
  });
  replicas_ = group("replicas", [&](const MeshCoordinate& other) {
    return at(other, Axis::dp) % neighbours == index(Axis::dp) % neighbours &&
           at(other, Axis::sp) == index(Axis::sp);
  });
}

void Mesh::use_staging(const Tensor& staging) const {
  for (const auto& axis : axes_) axis->use_staging(staging);
  data_->use_staging(staging);
  if (owners_) owners_->use_staging(staging);
  replicas_->use_staging(staging);
  model_->use_staging(staging);
  world_->use_staging(staging);
}

CommunicatorFactory self_factory() {
  return [](std::string_view name, const std::vector<int>& members, int) {
    require<RecipeError>(members.size() == 1,
                         "the layout needs {} ranks on {}, but this process runs alone",
                         members.size(), name);
    return make_self_communicator(std::string(name));
  };
}

CommunicatorFactory world_factory(World& world) {
  return [&world](std::string_view name, const std::vector<int>& members, int index) {
    return world.make_group(name, members, index);
  };
}

CommunicatorFactory meta_factory(CollectiveRecorder* recorder) {
  return [recorder](std::string_view name, const std::vector<int>& members, int index) {
    return make_meta_communicator(std::string(name), members, index, recorder);
  };
}

}  // namespace llmtrain
