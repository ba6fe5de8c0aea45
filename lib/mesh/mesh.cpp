#include "lib/mesh/mesh.hpp"

#include <algorithm>
#include <map>

#include "lib/base/require.hpp"
#include "lib/comm/pinned_staging.hpp"
#include "lib/comm/world.hpp"

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

int MeshShape::head_sharers() const {
  return sp_algo == SequenceSharing::ulysses ? (*this)[Axis::sp] : sp_ulysses;
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
  make_sequence_groups(factory);
  make_replicas(factory);
  make_experts(factory);
  constexpr std::array kModel{Axis::tp, Axis::pp};
  model_ = make_group(shape, rank, kModel, "tp*pp", factory);
  world_ = make_group(shape, rank, shape.order, "world", factory);
  if (size(Axis::pp) > 1) axis(Axis::pp).open_channels();
  if (shape.row_groups() > 1 && shape.sp_algo == SequenceSharing::ring) {
    row_sharers().open_channels();
  }
}

namespace {

// Ranks of one set of ZeRO's slices along dp, and the number of the set that a rank belongs to.
int neighbours_of(const MeshShape& shape) { return shape[Axis::dp] / shape.dp_replicate; }
int index_of(const MeshShape& shape, int rank, Axis axis) {
  return coordinate_of(shape, rank)[static_cast<int>(axis)];
}
int set_of(const MeshShape& shape, int rank) {
  return index_of(shape, rank, Axis::dp) / neighbours_of(shape);
}

}  // namespace

std::unique_ptr<Communicator> Mesh::make_subgroup(std::string_view name, std::vector<int> members,
                                                  const std::function<bool(int)>& belongs,
                                                  const CommunicatorFactory& factory) const {
  std::erase_if(members, [&](int member) { return !belongs(member); });
  const auto self = std::find(members.begin(), members.end(), rank_);
  return factory(name, members, static_cast<int>(self - members.begin()));
}

// Neighbours share heads, of which the groups are; the others have the same place in theirs.
void Mesh::make_sequence_groups(const CommunicatorFactory& factory) {
  const int sharers = shape_.head_sharers();
  if (sharers == 1 || shape_.row_groups() == 1) return;
  constexpr Axis kAxis = Axis::sp;
  const std::vector<int> ranks = group_of(shape_, rank_, {&kAxis, 1});
  const auto place = [&](int member) { return index_of(shape_, member, Axis::sp); };
  head_sharers_ = make_subgroup(
      "sp heads", ranks, [&](int r) { return place(r) / sharers == place(rank_) / sharers; },
      factory);
  row_sharers_ = make_subgroup(
      "sp rows", ranks, [&](int r) { return place(r) % sharers == place(rank_) % sharers; },
      factory);
}

void Mesh::make_replicas(const CommunicatorFactory& factory) {
  if (shape_.dp_replicate == 1) {
    replicas_ = factory("replicas", {rank_}, 0);
    return;
  }
  constexpr std::array kData{Axis::dp, Axis::sp};
  const std::vector<int> data = group_of(shape_, rank_, kData);
  const auto slices_of = [&](int rank) {
    return std::pair(index_of(shape_, rank, Axis::dp) % neighbours_of(shape_),
                     index_of(shape_, rank, Axis::sp));
  };
  owners_ = make_subgroup(
      "owners", data, [&](int other) { return set_of(shape_, other) == set_of(shape_, rank_); },
      factory);
  replicas_ = make_subgroup(
      "replicas", data, [&](int other) { return slices_of(other) == slices_of(rank_); }, factory);
}

// The owners of one set of slices, in ascending order, are cut into groups of `ep`; a rank's place
// in its group says which experts it has.
void Mesh::make_experts(const CommunicatorFactory& factory) {
  if (shape_.ep == 1) {
    experts_ = factory("experts", {rank_}, 0);
    return;
  }
  constexpr std::array kData{Axis::dp, Axis::sp};
  std::vector<int> data = group_of(shape_, rank_, kData);
  std::sort(data.begin(), data.end());
  std::map<int, int> places, next;  // of each rank among those of its set
  for (const int member : data) places[member] = next[set_of(shape_, member)]++;
  const auto same_set = [&](int other) { return set_of(shape_, other) == set_of(shape_, rank_); };
  const auto same_group = [&](int other) {
    return same_set(other) && places.at(other) / shape_.ep == places.at(rank_) / shape_.ep;
  };
  const auto same_experts = [&](int other) {
    return places.at(other) % shape_.ep == places.at(rank_) % shape_.ep;
  };
  const auto both = [&](int other) { return same_set(other) && same_experts(other); };
  experts_ = make_subgroup("experts", data, same_group, factory);
  expert_owners_ = make_subgroup("expert owners", data, both, factory);
  same_experts_ = make_subgroup("same experts", data, same_experts, factory);
}

template <class Visit>
void Mesh::for_each_group(const Visit& visit) const {
  for (const auto& axis : axes_) visit(*axis);
  for (const auto* group : {&data_, &head_sharers_, &row_sharers_, &owners_, &replicas_, &experts_,
                            &expert_owners_, &same_experts_, &model_, &world_}) {
    if (*group) visit(**group);
  }
}

std::uint64_t Mesh::collectives() const {
  std::uint64_t calls = 0;
  for_each_group([&](const Communicator& group) {
    if (group.size() > 1) calls += group.calls();
  });
  return calls;
}

void Mesh::use_staging(const Tensor& staging) const {
  for_each_group([&](Communicator& group) { group.use_staging(staging); });
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

CommunicatorFactory world_factory(World& world, const Device& device) {
  if (device.kind() == DeviceKind::cpu || world.place().size == 1) return world_factory(world);
  const auto staging = std::make_shared<PinnedStaging>(device);
  return [&world, staging](std::string_view name, const std::vector<int>& members, int index) {
    return world.make_group(name, members, index, staging);
  };
}

CommunicatorFactory world_factory(World& world, const Device& device,
                                  std::shared_ptr<DeviceWatch> watch) {
  return
      [&world, &device, watch](std::string_view name, const std::vector<int>& members, int index) {
        return world.make_device_group(name, members, index, device, watch);
      };
}

CommunicatorFactory meta_factory(CollectiveRecorder* recorder, DeviceKind device) {
  // Groups of a GPU's tensors have theirs in the host's memory.
  const std::uint64_t staging_bytes = device == DeviceKind::cpu ? kHostStagingBytes : 0;
  return [=](std::string_view name, const std::vector<int>& members, int index) {
    return make_meta_communicator(std::string(name), members, index, recorder, staging_bytes);
  };
}

}  // namespace llmtrain
