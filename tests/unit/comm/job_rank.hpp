#pragma once
/// Ranks of a job as the tests of collectives have them, and terms whose sums tell their order.

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "lib/comm/world.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::testing {

// A rank with a group of all ranks, staging, and tensors.
struct Rank {
  explicit Rank(Transport& transport) : world(transport) {
    std::vector<int> members(static_cast<std::size_t>(world.place().size));
    std::iota(members.begin(), members.end(), 0);
    group = world.make_group("all", members, world.place().rank);
    staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)}, DType::u8,
                              Category::comm, "staging");
    group->use_staging(staging);
  }
  Tensor tensor(DType dtype, std::int64_t n) {
    return device.allocate({n}, dtype, Category::activations, "t");
  }
  int rank() const { return world.place().rank; }

  Device device{make_cpu_memory(), 1 << 28};
  World world;
  std::unique_ptr<Communicator> group;
  Tensor staging;
};

template <class T>
std::span<T> values(const Tensor& tensor) {
  return {tensor.view().as<T>(), static_cast<std::size_t>(tensor.numel())};
}

// Rounds differently in every order of addition.
inline float term(int rank, std::size_t i) {
  return 1.0f / static_cast<float>(1 + (rank * 7919 + static_cast<int>(i) * 31) % 1009);
}

inline float sum_of_terms(int ranks, std::size_t i) {
  std::vector<float> terms;
  for (int r = 0; r < ranks; ++r) terms.push_back(term(r, i));
  for (std::size_t n = terms.size(); n > 1; n = (n + 1) / 2) {
    for (std::size_t p = 0; p < n / 2; ++p) terms[p] = terms[2 * p] + terms[2 * p + 1];
    if (n % 2 == 1) terms[n / 2] = terms[n - 1];
  }
  return terms[0];
}

inline constexpr std::array kSizes{2, 3, 4, 5, 8};
// Less than a rank's element each, odd, and more than the staging holds.
inline constexpr std::array<std::int64_t, 4> kCounts{1, 3, 1001, 300'001};

}  // namespace llmtrain::testing
