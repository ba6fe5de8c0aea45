#include "lib/parallel/partial_gradients.hpp"

#include <atomic>

#include <doctest/doctest.h>

#include "lib/comm/world.hpp"
#include "tests/support/thread_transport.hpp"

namespace llmtrain::parallel {

namespace {

ParameterSpec with(std::string name, const AxisPlacement& how) {
  ParameterSpec spec{.name = std::move(name), .shape = {4, 2}, .init = {}};
  spec.placement[Axis::tp] = how;
  return spec;
}

std::vector<double> values_of(const Tensor& tensor) {
  const double* first = tensor.view().as<double>();
  return {first, first + tensor.numel()};
}

}  // namespace

TEST_CASE("a gradient is summed over the ranks that have its terms, and over no others") {
  constexpr int kRanks = 4;
  std::atomic<int> wrong{0};
  testing::run_job(kRanks, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const Mesh mesh({.sizes = {1, kRanks, 1, 1}}, rank, world_factory(world));
    Device device(make_cpu_memory(), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    ParameterStore store(mesh);
    store.declare(with("whole", {}));
    store.declare(with("partial", {.grad_partial = true}));
    store.declare(with("split", {.split_dim = 0}));
    store.declare(with("by pairs", {.split_dim = 0, .replicas = 2}));
    store.allocate(device, {DType::f64, DType::f64, DType::f64}, true);
    for (const Parameter* p : store.local()) {
      double* g = p->grad().view().as<double>();
      for (std::int64_t i = 0; i < p->grad().numel(); ++i) g[i] = 1 << rank;
    }
    const PartialGradients sums(store, mesh, world_factory(world));
    sums.use_staging(staging);
    sums.sum();
    const double mine = 1 << rank;
    const double of_pair = rank < 2 ? 1 + 2 : 4 + 8;
    wrong += values_of(store.find("whole").grad()) != std::vector<double>(8, mine);
    wrong += values_of(store.find("partial").grad()) != std::vector<double>(8, 15);
    wrong += values_of(store.find("split").grad()) != std::vector<double>(2, mine);
    wrong += values_of(store.find("by pairs").grad()) != std::vector<double>(4, of_pair);
  });
  CHECK(wrong == 0);
}

TEST_CASE("a gradient is summed over the stages that have the parameter") {
  constexpr int kRanks = 3;
  std::atomic<int> wrong{0};
  testing::run_job(kRanks, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    MeshShape shape;
    shape.sizes[static_cast<int>(Axis::pp)] = kRanks;
    const Mesh mesh(shape, rank, world_factory(world));
    Device device(make_cpu_memory(), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    ParameterStore store(mesh);
    store.declare_on({0, 2});
    store.declare(with("tied", {}));
    store.declare_on({rank});
    store.declare(with("own", {}));
    store.allocate(device, {DType::f64, DType::f64, DType::f64}, true);
    for (const Parameter* p : store.local()) {
      double* g = p->grad().view().as<double>();
      for (std::int64_t i = 0; i < p->grad().numel(); ++i) g[i] = 1 << rank;
    }
    const PartialGradients sums(store, mesh, world_factory(world));
    sums.use_staging(staging);
    sums.sum();
    wrong += store.find("tied").is_local() != (rank != 1);
    wrong += counts_here(store.find("tied"), mesh) != (rank == 0);
    wrong += values_of(store.find("own").grad()) != std::vector<double>(8, 1 << rank);
    if (rank == 1) return;
    wrong += values_of(store.find("tied").grad()) != std::vector<double>(8, 1 + 4);
  });
  CHECK(wrong == 0);
}

}  // namespace llmtrain::parallel
