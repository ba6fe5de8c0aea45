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

Tensor filled(Device& device, double value, std::int64_t rows = 2) {
  Tensor tensor = device.allocate({rows, 3}, DType::f64, Category::activations, "values");
  std::fill_n(tensor.view().as<double>(), tensor.numel(), value);
  return tensor;
}

// Whether row r is filled with first + r.
bool rows_are(const Tensor& tensor, std::int64_t rows, double first) {
  bool good = tensor.numel() == 3 * rows;
  for (std::int64_t i = 0; good && i < 3 * rows; ++i) {
    good = tensor.view().as<double>()[i] == first + static_cast<double>(i / 3);
  }
  return good;
}

bool all_are(const Tensor& tensor, double value) {
  const double* first = tensor.view().as<double>();
  return tensor.numel() == 6 && std::all_of(first, first + 6, [&](double v) { return v == value; });
}

// Runs `body` (ctx, rank), which says whether all is well, on every rank of Axis::tp.
template <class F>
void on_ranks(int ranks, const F& body) {
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
    wrong += !body(ctx, rank);
  });
  CHECK(wrong == 0);
}

// What each of `ranks` ranks finds when rank r puts 1 + r in and gets the gradient 10 + r back.
void check(int ranks, Operation operation, bool sums_forward, bool sums_backward) {
  on_ranks(ranks, [&](const OpCtx& ctx, int rank) {
    Device& device = *ctx.kernel.device;
    Tape& tape = *ctx.tape;
    const Var x = tape.leaf(filled(device, 1 + rank));
    const Var y = operation(ctx, x);
    const int pairs = ranks * (ranks - 1) / 2;
    const bool forward = all_are(y.tensor, sums_forward ? ranks + pairs : 1 + rank);
    tape.seed(y, filled(device, 10 + rank));
    tape.backward(ctx, WeightGrads::now);
    return forward &&
           all_are(tape.take_gradient(x), sums_backward ? 10 * ranks + pairs : 10 + rank);
  });
}

}  // namespace

TEST_CASE("what enters a shared part of the model is whole, and its gradient the sum") {
  check(4, copy_to_tp, false, true);
}

TEST_CASE("what leaves a shared part of the model is the sum, and its gradient whole") {
  check(4, reduce, true, false);
}

TEST_CASE("where ranks share the rows, they gather what enters and keep their own of what leaves") {
  constexpr int kRanks = 4;
  constexpr int kPairs = kRanks * (kRanks - 1) / 2;
  on_ranks(kRanks, [](OpCtx ctx, int rank) {
    Device& device = *ctx.kernel.device;
    Tape& tape = *ctx.tape;
    const RowMap rows{
        .num_sequences = 1, .rows_per_sequence = kRanks, .own_begin = rank, .own_rows = 1};
    ctx.rows = &rows;
    const Var x = tape.leaf(filled(device, 1 + rank, 1));
    Var all = copy_to_tp(ctx, x);
    bool good = rows_are(all.tensor, kRanks, 1);
    // What a layer keeps of it is the way to gather it again.
    all.tensor = {};
    good = good && rows_are(all.source->get(ctx), kRanks, 1);
    tape.seed(all, filled(device, 10 + rank, kRanks));
    tape.backward(ctx, WeightGrads::now);
    good = good && rows_are(tape.take_gradient(x), 1, 10 * kRanks + kPairs);

    const Var terms = tape.leaf(filled(device, 1 + rank, kRanks));
    const Var own = reduce_from_tp(ctx, terms);
    good = good && rows_are(own.tensor, 1, kRanks + kPairs);
    tape.seed(own, filled(device, 10 + rank, 1));
    tape.backward(ctx, WeightGrads::now);
    return good && rows_are(tape.take_gradient(terms), kRanks, 10);
  });
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
