#include "lib/engine/checkpoint_share.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace llmtrain::engine {

std::set<const Parameter*> written_here(const ParameterStore& store, const Mesh& mesh) {
  std::map<const Communicator*, std::vector<std::int64_t>> written_by;
  std::set<const Parameter*> mine;
  for (const Parameter* p : store.local()) {
    const Communicator& sharers =
        p->is_sliced() ? mesh.replicas() : mesh.data(p->holders_of_data());
    std::vector<std::int64_t>& written = written_by[&sharers];
    written.resize(static_cast<std::size_t>(sharers.size()));
    const auto least = std::min_element(written.begin(), written.end());
    *least += p->box().shape.numel();
    const bool turn = least - written.begin() == sharers.rank();
    const bool writes = turn && p->own_slice().count > 0;
    if (writes && counts_here(*p, mesh)) mine.insert(p);
  }
  return mine;
}

std::uint64_t written_bytes(const std::set<const Parameter*>& written,
                            const optim::OptimizerSet& optimizer) {
  std::uint64_t bytes = 0;
  for (const Parameter* p : written) {
    bytes += static_cast<std::uint64_t>(p->own_slice().count) * size_of(p->stored_dtype());
  }
  for (const optim::StateTensor& state : optimizer.states()) {
    if (written.contains(state.parameter)) bytes += state.tensor.view().bytes();
  }
  return bytes;
}

}  // namespace llmtrain::engine
