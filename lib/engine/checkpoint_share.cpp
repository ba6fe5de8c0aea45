#include "lib/engine/checkpoint_share.hpp"

#include <algorithm>
#include <functional>
#include <map>

namespace llmtrain::engine {

namespace {

const Communicator& sharers_of(const Parameter& p, const Mesh& mesh) {
  return p.is_sliced() ? mesh.replicas() : mesh.data(p.holders_of_data());
}

// Whoever gets the largest one last, as a head is, has that much more than the others.
std::vector<const Parameter*> largest_first(const ParameterStore& store) {
  std::vector<const Parameter*> order(store.local().begin(), store.local().end());
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const Parameter* p) { return p->box().shape.numel(); });
  return order;
}

}  // namespace

std::vector<WriteTurn> write_turns(const ParameterStore& store, const Mesh& mesh) {
  std::map<const Communicator*, std::vector<std::int64_t>> written_by;
  std::vector<WriteTurn> turns;
  for (const Parameter* p : largest_first(store)) {
    const Communicator& sharers = sharers_of(*p, mesh);
    std::vector<std::int64_t>& written = written_by[&sharers];
    written.resize(static_cast<std::size_t>(sharers.size()));
    const auto least = std::min_element(written.begin(), written.end());
    *least += p->box().shape.numel();
    turns.push_back({p, static_cast<int>(least - written.begin())});
  }
  return turns;
}

std::set<const Parameter*> written_here(const ParameterStore& store, const Mesh& mesh) {
  std::set<const Parameter*> mine;
  for (const WriteTurn& turn : write_turns(store, mesh)) {
    const Parameter& p = *turn.parameter;
    const bool writes = turn.writer == sharers_of(p, mesh).rank() && p.own_slice().count > 0;
    if (writes && counts_here(p, mesh)) mine.insert(&p);
  }
  return mine;
}

std::uint64_t written_bytes(const std::set<const Parameter*>& written,
                            std::span<const optim::StateTensor> states) {
  std::uint64_t bytes = 0;
  for (const Parameter* p : written) {
    bytes += static_cast<std::uint64_t>(p->own_slice().count) * size_of(p->stored_dtype());
  }
  for (const optim::StateTensor& state : states) {
    if (state.is_first && written.contains(state.parameter)) bytes += state.bytes();
  }
  return bytes;
}

}  // namespace llmtrain::engine
