#pragma once
/// What travels together.

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/comm/communicator.hpp"

namespace llmtrain::parallel {

/// What travels over each group of ranks, in the order in which it came, on every member the same.
template <class T>
class Companions {
 public:
  void add(Communicator& group, T item) {
    const auto is_same = [&](const auto& of) { return of.first == &group; };
    auto at = std::ranges::find_if(groups_, is_same);
    if (at == groups_.end()) at = groups_.insert(at, {&group, {}});
    at->second.push_back(std::move(item));
  }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

 private:
  std::vector<std::pair<Communicator*, std::vector<T>>> groups_;
};

}  // namespace llmtrain::parallel
