#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "kernels/elementwise.hpp"
#include "lib/autograd/tape.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/ops.hpp"
#include "tests/support/thread_transport.hpp"

namespace llmtrain::ops {

namespace {

constexpr std::int64_t kSequences = 2, kLength = 24;
constexpr HeadLayout kHeads{4, 2, 6};

struct RingCase {
  DType dtype = DType::f64;
  std::int64_t window = 0;
  double dropout = 0, softcap = 0;
  std::vector<std::int32_t> documents = {0};
};

// Of all rows, in their order: what attention gives, and the gradient of qkv.
struct Outcome {
  std::vector<double> out, dqkv;
  std::vector<std::uint64_t> sent_bytes;
};

// A sequence is cut into 2n pieces, of which rank r has r and 2n - 1 - r.
std::vector<std::int32_t> positions_of(int rank, int ranks) {
  std::vector<std::int32_t> positions;
  const auto piece = static_cast<std::int32_t>(kLength / (2 * ranks));
  for (const std::int32_t p : {rank, 2 * ranks - 1 - rank}) {
    for (std::int32_t i = 0; i < piece; ++i) positions.push_back(p * piece + i);
  }
  return positions;
}

template <class T>
Tensor to_device(Device& device, const std::vector<T>& values, const Shape& shape, DType dtype) {
  Tensor tensor = device.allocate(shape, dtype, Category::activations, "values");
  device.copy_from_host(tensor, std::as_bytes(std::span(values)));
  return tensor;
}

// One rank's rows of the problem.
class RingRank {
 public:
  RingRank(const Mesh& mesh, const RingCase& c)
      : mesh_(mesh), case_(c), device_(make_cpu_memory(), 1 << 24) {
    ctx_.kernel.device = &device_;
    ctx_.kernel.table = &kernels::cpu_table();
    ctx_.mesh = &mesh;
    ctx_.training = true;
    ctx_.rows = &rows_;
    place_rows();
  }

  void run(Outcome& all) {
    Tape tape;
    ctx_.tape = &tape;
    const Var qkv = tape.leaf(matrix(kHeads.cols(), 1.7));
    const Var out = attention(ctx_, qkv,
                              {.heads = kHeads,
                               .scale = 0.6,
                               .softcap = case_.softcap,
                               .window = case_.window,
                               .dropout = case_.dropout,
                               .dropout_name = "here"});
    collect(out.tensor, all.out);
    tape.seed(out, matrix(kHeads.q_cols(), 2.3));
    tape.backward(ctx_, WeightGrads::now);
    collect(tape.take_gradient(qkv), all.dqkv);
  }

 private:
  void place_rows() {
    const int ranks = mesh_.size(Axis::sp);
    const std::vector<std::int32_t> own = positions_of(mesh_.index(Axis::sp), ranks);
    std::vector<std::int32_t> all, begin;
    for (std::int64_t s = 0; s < kSequences; ++s) {
      position_.insert(position_.end(), own.begin(), own.end());
    }
    for (const std::int32_t p : position_) {
      begin.push_back(*(std::upper_bound(case_.documents.begin(), case_.documents.end(), p) - 1));
    }
    for (int r = 0; r < ranks; ++r) {
      for (std::int64_t s = 0; s < kSequences; ++s) {
        for (const std::int32_t p : positions_of(r, ranks)) all.push_back(p);
      }
    }
    const auto rows = std::ssize(position_);
    rows_ = {.num_sequences = kSequences,
             .rows_per_sequence = rows / kSequences,
             .seq_len = kLength,
             .position = to_device(device_, position_, {rows}, DType::i32),
             .document_begin = to_device(device_, begin, {rows}, DType::i32),
             .sample = to_device(device_, std::vector<std::int64_t>{5, 6}, {2}, DType::i64)};
    if (ranks == 1) return;
    rows_.all_position = to_device(device_, all, {std::ssize(all)}, DType::i32);
  }

  std::int64_t row_of_all(std::int64_t row) const {
    return row / rows_.rows_per_sequence * kLength + position_[static_cast<std::size_t>(row)];
  }

  Tensor matrix(std::int64_t cols, double frequency) {
    std::vector<double> values;
    for (std::int64_t row = 0; row < rows_.rows(); ++row) {
      for (std::int64_t j = 0; j < cols; ++j) {
        values.push_back(std::sin(frequency * static_cast<double>(row_of_all(row) * cols + j)));
      }
    }
    const Tensor exact = to_device(device_, values, {rows_.rows(), cols}, DType::f64);
    return cast(exact, case_.dtype);
  }

  Tensor cast(const Tensor& x, DType dtype) {
    Tensor y = ctx_.allocate(x.shape(), dtype, "values");
    ctx_.launch(kernels::ScaleCast{.x = x, .y = y});
    return y;
  }

  // Ranks write rows of their own.
  void collect(const Tensor& own, std::vector<double>& all) {
    const Tensor values = cast(own, DType::f64);
    for (std::int64_t row = 0; row < own.rows(); ++row) {
      std::copy_n(values.view().row<double>(row), own.cols(),
                  all.begin() + row_of_all(row) * own.cols());
    }
  }

  const Mesh& mesh_;
  const RingCase& case_;
  Device device_;
  OpCtx ctx_;
  RowMap rows_;
  std::vector<std::int32_t> position_;
};

Outcome run_ranks(int ranks, const RingCase& c, bool attends = true) {
  Outcome outcome;
  outcome.out.resize(static_cast<std::size_t>(kSequences * kLength * kHeads.q_cols()));
  outcome.dqkv.resize(static_cast<std::size_t>(kSequences * kLength * kHeads.cols()));
  outcome.sent_bytes = testing::run_job(ranks, [&](Transport& transport) {
    World world(transport);
    const Mesh mesh({.sizes = {1, 1, 1, ranks}, .sp_algo = SequenceSharing::ring},
                    world.place().rank, world_factory(world));
    if (attends) RingRank(mesh, c).run(outcome);
  });
  return outcome;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("a ring of ranks attends as one rank does, and so do its gradients") {
  const RingCase cases[] = {
      {},
      {.documents = {0, 3, 11, 20}},
      {.window = 5},
      {.dropout = 0.3, .documents = {0, 9}},
      {.window = 9, .dropout = 0.2, .softcap = 2, .documents = {0, 14}},
  };
  for (const RingCase& c : cases) {
    CAPTURE(c.window);
    const Outcome one = run_ranks(1, c);
    for (const int ranks : {2, 3, 4, 6}) {
      CAPTURE(ranks);
      const Outcome found = run_ranks(ranks, c);
      CHECK(largest_difference(found.out, one.out) < 1e-14);
      CHECK(largest_difference(found.dqkv, one.dqkv) < 1e-13);
    }
  }
}

TEST_CASE("a ring's sums are FP32, so that its errors do not grow with its ranks") {
  const Outcome exact = run_ranks(1, {});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(to_string(dtype));
    const Outcome one = run_ranks(1, {.dtype = dtype}), six = run_ranks(6, {.dtype = dtype});
    CHECK(largest_difference(six.out, exact.out) <= 1.5 * largest_difference(one.out, exact.out));
    CHECK(largest_difference(six.dqkv, exact.dqkv) <=
          1.5 * largest_difference(one.dqkv, exact.dqkv));
  }
}

TEST_CASE(
    "what a ring sends is all but its own share of keys and values, twice, and of their sums") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(ranks);
      const Outcome without = run_ranks(ranks, {.dtype = dtype}, false);
      const Outcome found = run_ranks(ranks, {.dtype = dtype});
      const auto elements = static_cast<std::uint64_t>(kSequences * kLength * 2 * kHeads.kv_cols());
      const std::uint64_t of_one = elements / static_cast<std::uint64_t>(ranks);
      const std::uint64_t bytes = 2 * size_of(dtype) + size_of(statistics_dtype(dtype));
      for (std::size_t r = 0; r < found.sent_bytes.size(); ++r) {
        CHECK(found.sent_bytes[r] - without.sent_bytes[r] == (elements - of_one) * bytes);
      }
    }
  }
}

}  // namespace llmtrain::ops
