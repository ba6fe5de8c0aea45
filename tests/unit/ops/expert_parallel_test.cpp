// Rows on their way to experts on other ranks and back, exactly those that there are and as many to
// every rank: what arrives, what returns, and who waits for the device.
#include "lib/ops/expert_parallel.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "kernels/expert_slots.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "tests/support/thread_transport.hpp"

namespace llmtrain::ops {

namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kExperts = 4, kRows = 5, kTopK = 2, kCols = 3;

/// Host memory that counts how often the host reads what a device computed.
class CountingMemory final : public MemoryBackend {
 public:
  explicit CountingMemory(int& reads) : reads_(&reads) {}
  DeviceKind kind() const override { return memory_->kind(); }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override {
    ++*reads_;
    memory_->copy_to_host(host, device, bytes);
  }
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override {
    memory_->copy_from_host(device, host, bytes);
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override {
    memory_->copy_on_device(to, from, bytes);
  }

 private:
  int* reads_;
  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
};

struct Rank {
  OpCtx ctx;
  int rank = 0;
  int* reads = nullptr;
  Device& device() const { return *ctx.kernel.device; }
};

// Runs `body`, which says whether all is well, on both ranks.
template <class F>
void on_ranks(const F& body) {
  std::atomic<int> wrong{0};
  testing::run_job(kRanks, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const Mesh mesh({.sizes = {kRanks, 1, 1, 1}, .ep = kRanks}, rank, world_factory(world));
    int reads = 0;
    Device device(std::make_unique<CountingMemory>(reads), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    const RowMap rows{.num_sequences = 1, .rows_per_sequence = kRows, .seq_len = kRows};
    Rank of{.ctx = {}, .rank = rank, .reads = &reads};
    of.ctx.kernel = {.device = &device, .table = &kernels::cpu_table(), .threads = 1};
    of.ctx.mesh = &mesh;
    of.ctx.rows = &rows;
    of.ctx.training = true;
    wrong += !body(of);
  });
  CHECK(wrong == 0);
}

// Most choices of rank 0 are of experts on rank 1; expert 0 has none; some are nobody's.
std::array<std::int32_t, kRows * kTopK> choices_of(int rank) {
  if (rank == 0) return {2, 3, 3, 1, 2, -1, 3, 2, -1, 3};
  return {1, 2, 3, 1, 1, -1, 1, 3, 2, 1};
}

SortedRows sorted_choices(const Rank& of) {
  const auto choices = choices_of(of.rank);
  const Tensor expert =
      of.device().allocate({std::ssize(choices)}, DType::i32, Category::activations, "choices");
  std::memcpy(expert.view().data, choices.data(), sizeof choices);
  return sort_by_expert(of.ctx, expert, kExperts);
}

// In the place of each sorted row its rank and choice.
Tensor named_rows(const Rank& of, const SortedRows& sorted) {
  Tensor x = of.device().allocate({kRows * kTopK, kCols}, DType::f64, Category::activations, "x");
  for (std::int64_t p = 0; p < x.rows(); ++p) {
    for (std::int64_t j = 0; j < kCols; ++j) {
      x.view().row<double>(p)[j] =
          1000 * (of.rank + 1) + 10 * sorted.source.view().as<std::int32_t>()[p] + j;
    }
  }
  return x;
}

std::int64_t filled(const SortedRows& sorted) {
  return sorted.offsets.view().as<std::int32_t>()[sorted.offsets.numel() - 1];
}

bool same_rows(const Tensor& a, const Tensor& b, std::int64_t rows) {
  return std::memcmp(a.view().data, b.view().data,
                     static_cast<std::size_t>(rows * kCols) * sizeof(double)) == 0;
}

bool is_filled_with(const Tensor& x, std::int64_t begin, double value) {
  for (std::int64_t i = begin * kCols; i < x.numel(); ++i) {
    if (x.view().as<double>()[i] != value) return false;
  }
  return true;
}

RowsToSend to_send(const SortedRows& sorted, Tensor needed = {}) {
  return {.sorted = sorted, .rows = kRows, .top_k = kTopK, .needed = std::move(needed)};
}

}  // namespace

TEST_CASE("the same rows come in the same order whether as many as there are or as many as fit") {
  on_ranks([](const Rank& of) {
    const SortedRows sorted = sorted_choices(of);
    const Tensor x = named_rows(of, sorted);
    const SharedExchange exact = exact_exchange(of.ctx, to_send(sorted));
    const SharedExchange bounded = bounded_exchange(of.ctx, to_send(sorted), 0);
    const Tensor came = exact->bring(of.ctx, x), came_too = bounded->bring(of.ctx, x);
    const std::int64_t rows = filled(exact->sorted());
    bool good = rows == (of.rank == 0 ? 1 + 5 : 7 + 4);
    good = good && filled(bounded->sorted()) == rows && same_rows(came, came_too, rows);
    good = good && is_filled_with(came, rows, 0) && is_filled_with(came_too, rows, 0);
    // Those of rank 0 are before those of rank 1.
    const std::int32_t first = exact->sorted().offsets.view().as<std::int32_t>()[1];
    good = good && came.view().row<double>(first)[0] == (of.rank == 0 ? 1030 : 1010);
    for (const auto& [exchange, arrived] : {std::pair(exact, came), std::pair(bounded, came_too)}) {
      const Tensor back = exchange->give_back(of.ctx, arrived);
      good = good && same_rows(back, x, filled(sorted)) && is_filled_with(back, filled(sorted), 0);
    }
    return good;
  });
}

TEST_CASE("who sends what there is reads the device once, who sends as many to each never") {
  on_ranks([](const Rank& of) {
    const SortedRows sorted = sorted_choices(of);
    const Tensor x = named_rows(of, sorted);
    const auto reads_of = [&](const SharedExchange& exchange) {
      exchange->give_back(of.ctx, exchange->bring(of.ctx, x));
      return std::exchange(*of.reads, 0);
    };
    return reads_of(exact_exchange(of.ctx, to_send(sorted))) == 1 &&
           reads_of(bounded_exchange(of.ctx, to_send(sorted), 1.2)) == 0;
  });
}

TEST_CASE("rows without a slot come back as NaN, and how much room they needed is known") {
  on_ranks([](const Rank& of) {
    const SortedRows sorted = sorted_choices(of);
    const Tensor x = named_rows(of, sorted);
    const Tensor needed =
        of.device().allocate({1}, DType::f64, Category::activations, "needed room");
    double& share = *needed.view().as<double>();
    share = 0;
    // An even share is 5 rows: 6 slots. Rank 0 has 7 rows for rank 1, rank 1 has 5 and 4.
    const SharedExchange tight = bounded_exchange(of.ctx, to_send(sorted, needed), 1.2);
    const Tensor back = tight->give_back(of.ctx, tight->bring(of.ctx, x));
    const std::int64_t lost = of.rank == 0 ? 7 : -1;
    bool good = share == (of.rank == 0 ? 1.4 : 0.0);
    for (std::int64_t p = 0; p < filled(sorted); ++p) {
      const double* const row = back.view().row<double>(p);
      const bool same = row[0] == x.view().row<double>(p)[0];
      good = good && (p == lost ? std::isnan(row[0]) && std::isnan(row[kCols - 1]) : same);
    }
    // What was needed before is not forgotten.
    share = 9;
    bounded_exchange(of.ctx, to_send(sorted, needed), 1.2);
    return good && share == 9;
  });
}

TEST_CASE("ranks of an evaluation that have fewer rows than others exchange as many") {
  on_ranks([](Rank of) {
    of.ctx.training = false;
    SortedRows sorted = sorted_choices(of);
    Tensor x = named_rows(of, sorted);
    RowsToSend send = to_send(sorted);
    if (of.rank == 1) {  // two rows only
      const Tensor expert =
          of.device().allocate({2 * kTopK}, DType::i32, Category::activations, "choices");
      std::memcpy(expert.view().data, choices_of(1).data(), expert.view().bytes());
      send.sorted = sort_by_expert(of.ctx, expert, kExperts);
      send.rows = 2;
      x = x.row_range(0, 2 * kTopK);
    }
    const SharedExchange bounded = bounded_exchange(of.ctx, send, 0);
    const Tensor back = bounded->give_back(of.ctx, bounded->bring(of.ctx, x));
    return same_rows(back, x, filled(send.sorted)) && back.rows() == x.rows();
  });
}

}  // namespace llmtrain::ops
