#include <algorithm>
#include <atomic>

#include <doctest/doctest.h>

#include "lib/autograd/tape.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/ops.hpp"
#include "tests/support/thread_transport.hpp"

namespace llmtrain::ops {

namespace {

using Operation = Var (*)(const OpCtx&, const Var&);

Var reduce(const OpCtx& ctx, const Var& y) { return reduce_from_tp(ctx, y); }

Tensor filled(Device& device, double value) {
  Tensor tensor = device.allocate({2, 3}, DType::f64, Category::activations, "values");
  std::fill_n(tensor.view().as<double>(), tensor.numel(), value);
  return tensor;
}

bool all_are(const Tensor& tensor, double value) {
  const double* first = tensor.view().as<double>();
  return tensor.numel() == 6 && std::all_of(first, first + 6, [&](double v) { return v == value; });
}

// What each of `ranks` ranks finds when rank r puts 1 + r in and gets the gradient 10 + r back.
void check(int ranks, Operation operation, bool sums_forward, bool sums_backward) {
  std::atomic<int> wrong{0};
  testing::run_job(ranks, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const Mesh mesh({.sizes = {1, ranks, 1, 1}}, rank, world_factory(world));
    Device device(make_cpu_memory(), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    Tape tape;
    OpCtx ctx;
    ctx.kernel.device = &device;
    ctx.tape = &tape;
    ctx.mesh = &mesh;
    const Var x = tape.leaf(filled(device, 1 + rank));
    const Var y = operation(ctx, x);
    const int pairs = ranks * (ranks - 1) / 2;
    wrong += !all_are(y.tensor, sums_forward ? ranks + pairs : 1 + rank);
    tape.seed(y, filled(device, 10 + rank));
    tape.backward(ctx, WeightGrads::now);
    wrong += !all_are(tape.take_gradient(x), sums_backward ? 10 * ranks + pairs : 10 + rank);
  });
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("what enters a shared part of the model is whole, and its gradient the sum") {
  check(4, copy_to_tp, false, true);
}

TEST_CASE("what leaves a shared part of the model is the sum, and its gradient whole") {
  check(4, reduce, true, false);
}

TEST_CASE("nothing is recorded where no ranks share a layer") {
  Device device(make_cpu_memory(), 1 << 20);
  Tape tape;
  OpCtx ctx;
  ctx.kernel.device = &device;
  ctx.tape = &tape;
  const Var x = tape.leaf(filled(device, 1));
  CHECK(copy_to_tp(ctx, x).id == x.id);
  CHECK(reduce_from_tp(ctx, x).id == x.id);
}

}  // namespace llmtrain::ops
