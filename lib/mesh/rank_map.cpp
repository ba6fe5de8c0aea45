#include "lib/mesh/rank_map.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

// What is longer is abridged to the first kShown.
constexpr std::size_t kMostLines = 8, kMostMembers = 8, kShown = 3;
constexpr std::size_t kColumn = 24;

using Groups = std::vector<std::vector<int>>;

Groups groups_along(const MeshShape& shape, std::span<const Axis> axes) {
  std::vector<bool> known(static_cast<std::size_t>(shape.world_size()));
  Groups groups;
  for (int rank = 0; rank < shape.world_size(); ++rank) {
    if (known[static_cast<std::size_t>(rank)]) continue;
    groups.push_back(group_of(shape, rank, axes));
    for (const int member : groups.back()) known[static_cast<std::size_t>(member)] = true;
  }
  return groups;
}

int index_of(const MeshShape& shape, int rank, Axis axis) {
  return coordinate_of(shape, rank)[static_cast<int>(axis)];
}

// Every group cut by the key of its members, which keep their order.
template <class KeyOf>
Groups divided(const Groups& groups, const KeyOf& key_of) {
  Groups parts;
  for (const std::vector<int>& group : groups) {
    std::map<int, std::vector<int>> by_key;
    for (const int rank : group) by_key[key_of(rank)].push_back(rank);
    for (auto& [key, members] : by_key) parts.push_back(std::move(members));
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
  });
  return parts;
}

// Neighbours in ascending order, `ep` of those that have one set of slices (Mesh::make_experts).
Groups expert_groups(const MeshShape& shape, const Groups& slices) {
  Groups parts;
  for (std::vector<int> owners : slices) {
    std::sort(owners.begin(), owners.end());
    for (auto at = owners.begin(); at != owners.end(); at += shape.ep) {
      parts.emplace_back(at, at + shape.ep);
    }
  }
  return divided(parts, [](int) { return 0; });
}

}  // namespace

std::vector<RankGroups> rank_groups(const MeshShape& shape) {
  std::vector<RankGroups> kinds;
  const auto add = [&](std::string name, Groups groups) {
    if (groups.front().size() > 1) kinds.push_back({std::move(name), std::move(groups)});
  };
  for (const Axis axis : shape.order) {
    add(std::string(to_string(axis)), groups_along(shape, {&axis, 1}));
  }
  if (const int sharers = shape.head_sharers(); sharers > 1 && shape.row_groups() > 1) {
    constexpr std::array kSequence{Axis::sp};
    const Groups sequence = groups_along(shape, kSequence);
    const auto place = [&](int rank) { return index_of(shape, rank, Axis::sp); };
    add("sp heads", divided(sequence, [&](int rank) { return place(rank) / sharers; }));
    add("sp rows", divided(sequence, [&](int rank) { return place(rank) % sharers; }));
  }
  constexpr std::array kData{Axis::dp, Axis::sp};
  const Groups data = groups_along(shape, kData);
  if (shape[Axis::dp] > 1 && shape[Axis::sp] > 1) add("dp x sp", data);
  const int neighbours = shape[Axis::dp] / shape.dp_replicate;
  const Groups slices =
      divided(data, [&](int rank) { return index_of(shape, rank, Axis::dp) / neighbours; });
  if (shape.dp_replicate > 1) {
    add("slices", slices);
    add("replicas", divided(data, [&](int rank) {
          return index_of(shape, rank, Axis::dp) % neighbours * shape[Axis::sp] +
                 index_of(shape, rank, Axis::sp);
        }));
  }
  if (shape.ep > 1) add("ep", expert_groups(shape, slices));
  return kinds;
}

RankPlaces places_on(const std::vector<std::string>& hosts) {
  RankPlaces places;
  std::map<std::string, int> known;
  for (const std::string& host : hosts) {
    const auto [place, is_new] = known.emplace(host, std::ssize(places.machines));
    if (is_new) places.machines.push_back(host);
    places.machine_of.push_back(place->second);
  }
  return places;
}

RankPlaces assumed_places(int ranks, int ranks_per_node) {
  RankPlaces places;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = rank / ranks_per_node;
    if (rank % ranks_per_node == 0) places.machines.push_back(fmt::format("node {}", node));
    places.machine_of.push_back(node);
  }
  return places;
}

namespace {

std::string line(std::string_view left, std::string_view right) {
  return fmt::format("  {:<{}}{}{}\n", left, kColumn, left.size() < kColumn ? "" : "  ", right);
}

// Between neighbours of every group; nothing if they differ.
std::optional<int> stride_of(const Groups& groups) {
  const int stride = groups.front()[1] - groups.front()[0];
  for (const std::vector<int>& group : groups) {
    for (std::size_t i = 1; i < group.size(); ++i) {
      if (group[i] - group[i - 1] != stride) return std::nullopt;
    }
  }
  return stride;
}

// "0 2 4 6", "0 8 16 ... 1016".
std::string members_text(const std::vector<int>& group) {
  if (group.size() <= kMostMembers) return fmt::format("{}", fmt::join(group, " "));
  const std::span<const int> first(group.data(), kShown);
  return fmt::format("{} ... {}", fmt::join(first, " "), group.back());
}

std::vector<int> machines_of(const std::vector<int>& group, const RankPlaces& places) {
  std::vector<int> machines;
  for (const int rank : group) {
    machines.push_back(places.machine_of[static_cast<std::size_t>(rank)]);
  }
  std::sort(machines.begin(), machines.end());
  machines.erase(std::unique(machines.begin(), machines.end()), machines.end());
  return machines;
}

// "node-a", "node-a, node-b", "node 0, node 1, node 2, ... (16 machines)".
std::string machines_text(const std::vector<int>& machines, const RankPlaces& places) {
  std::string text;
  for (std::size_t i = 0; i < std::min(machines.size(), kShown); ++i) {
    const auto at = static_cast<std::size_t>(machines[i]);
    text += fmt::format("{}{}", i == 0 ? "" : ", ", places.machines[at]);
  }
  return machines.size() <= kShown ? text
                                   : fmt::format("{}, ... ({} machines)", text, machines.size());
}

std::string more(std::size_t all, std::string_view of_what) {
  return all <= kMostLines ? "" : fmt::format("  ... and {} more {}\n", all - kShown, of_what);
}

std::size_t shown(std::size_t all) { return all <= kMostLines ? all : kShown; }

std::string machines_section(const RankPlaces& places) {
  struct Run {
    std::size_t first, last;
  };
  std::vector<Run> runs;
  const std::vector<int>& of = places.machine_of;
  for (std::size_t rank = 0; rank < of.size(); ++rank) {
    if (rank > 0 && of[rank] == of[rank - 1]) {
      runs.back().last = rank;
    } else {
      runs.push_back({rank, rank});
    }
  }
  const bool one = places.machines.size() == 1;
  std::string text = fmt::format("{} machine{}\n", places.machines.size(), one ? "" : "s");
  for (std::size_t i = 0; i < shown(runs.size()); ++i) {
    const auto [first, last] = runs[i];
    text += line(
        first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last),
        places.machines[static_cast<std::size_t>(of[first])]);
  }
  return text + more(runs.size(), "such ranges");
}

std::string groups_section(const RankGroups& kind, const RankPlaces& places) {
  std::size_t crossing = 0, most = 1;
  for (const std::vector<int>& group : kind.groups) {
    const std::size_t machines = machines_of(group, places).size();
    crossing += machines > 1;
    most = std::max(most, machines);
  }
  const std::size_t count = kind.groups.size();
  const std::optional<int> stride = stride_of(kind.groups);
  std::string text = fmt::format(
      "{}: {} group{} of {} ranks{}, {}\n", kind.name, count, count == 1 ? "" : "s",
      kind.groups.front().size(), stride ? fmt::format(" at a distance of {}", *stride) : "",
      crossing == 0
          ? "each inside a machine"
          : fmt::format("{} between machines, on up to {}",
                        crossing == count ? "each" : fmt::format("{} of them", crossing), most));
  for (std::size_t i = 0; i < shown(count); ++i) {
    text += line(members_text(kind.groups[i]),
                 machines_text(machines_of(kind.groups[i], places), places));
  }
  return text + more(count, "groups");
}

}  // namespace

std::string rank_map_text(const MeshShape& shape, const RankPlaces& places) {
  require(std::ssize(places.machine_of) == shape.world_size(), "places of {} ranks, not {}",
          places.machine_of.size(), shape.world_size());
  std::string sizes, order;
  for (const Axis axis : shape.order) {
    if (shape[axis] == 1) continue;
    sizes += fmt::format("{}{} {}", sizes.empty() ? " = " : " x ", to_string(axis), shape[axis]);
    order +=
        fmt::format("{}{}", order.empty() ? "; neighbours share " : ", then ", to_string(axis));
  }
  const int ranks = shape.world_size();
  std::string text = fmt::format("{} rank{}{}{}\n", ranks, ranks == 1 ? "" : "s", sizes, order);
  text += machines_section(places);
  for (const RankGroups& kind : rank_groups(shape)) {
    text += groups_section(kind, places);
    if (kind.name != to_string(Axis::tp)) continue;
    if (const auto advice = advice_on_tp(shape, places)) text += "  " + *advice + "\n";
  }
  return text;
}

std::optional<std::string> advice_on_tp(const MeshShape& shape, const RankPlaces& places) {
  constexpr std::array kShared{Axis::tp};
  for (const std::vector<int>& group : groups_along(shape, kShared)) {
    const std::vector<int> machines = machines_of(group, places);
    if (machines.size() == 1) continue;
    return fmt::format(
        "tp waits for every exchange, and between {} that takes longest: choose one that divides "
        "the ranks of a machine, and name it first in parallelism.order",
        machines_text(machines, places));
  }
  return std::nullopt;
}

}  // namespace llmtrain
