// Two ranks that do not mean the same message, as a defect would make them:
//
//   mesh_odd_size SENT EXPECTED
//
// rank 1 sends so many elements of FP32 to rank 0, which expects as many as that.
#include <cstdio>
#include <string>

#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/tensor/device.hpp"
#include "lib/train/peers.hpp"

using namespace llmtrain;

namespace {

ExitCode exchange(World& world, std::int64_t sent, std::int64_t expected) {
  Device device(make_cpu_memory(), std::uint64_t{1} << 20);
  const auto pair = world_factory(world)("pair", {0, 1}, world.place().rank);
  const auto tensor = [&](std::int64_t n) {
    return device.allocate({n}, DType::f32, Category::activations, "odd");
  };
  if (pair->rank() == 1) {
    pair->send(tensor(sent), 0, "odd size").wait();
  } else {
    pair->recv(tensor(expected), 1, "odd size").wait();
    std::puts("went on with what came");
  }
  return ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: mesh_odd_size SENT EXPECTED\n", stderr);
    return 2;
  }
  return static_cast<int>(train::run_as_rank(
      [&](World& world) { return exchange(world, std::stoi(argv[1]), std::stoi(argv[2])); }));
}
