// Second moments of blocks on the device: the reference's bits.
#include "kernels/block_moments.hpp"

#include "tests/cuda/optimizer_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

struct Blocks {
  std::int64_t count, size;
};
// Less than a pack, more than a chunk, sums of which the last chunk is short, and more chunks than
// a thread joins.
constexpr Blocks kBlocks[] = {{1, 1},
                              {5, 7},
                              {40, 96},
                              {3, kListChunk},
                              {3, 20'000},
                              {2, 7 * kListChunk + 1029},
                              {2, 33 * kListChunk + 5}};

}  // namespace

TEST_CASE("squares of blocks have the reference's bits, wherever the gradient begins") {
  for (const auto& [count, size] : kBlocks) {
    for (const DType dtype : kMasters) {
      for (const std::int64_t before : {0, 1}) {
        CAPTURE(count);
        CAPTURE(size);
        const std::int64_t n = count * size, block = size;
        compare(
            [&](Machine& m) {
              const Tensor whole = m.operand("g", {before + n, 1}).reshape({before + n});
              const Tensor out = m.empty({count}, DType::f64);
              m.run(BlockSquares{.g = whole.columns(before, n), .block = block, .out = out});
              return outputs(m, out);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("updates with moments of blocks have the reference's bits") {
  for (const auto& [count, size] : kBlocks) {
    for (const DType dtype : kMasters) {
      for (const auto& [applying, order] :
           {std::pair(true, false), std::pair(true, true), std::pair(false, false)}) {
        CAPTURE(size);
        const std::int64_t n = count * size, block = size;
        const bool applies = applying, decay_last = order;
        compare(
            [&](Machine& m) {
              const Tensor p = m.operand("p", {n}), g = m.operand("g", {n});
              const Tensor first = m.operand("m", {n}), copy = m.zeros({n}, DType::bf16);
              const Tensor squares = m.empty({count}, DType::f64);
              const Tensor moment =
                  m.of(Values(static_cast<std::size_t>(count), 0.25), {count}, m.compute());
              const Tensor decision = decision_of(m, 0.7, 5, applies);
              m.run(BlockSquares{.g = g, .block = block, .out = squares});
              m.run(BlockMoments{
                  .squares = squares, .moment = moment, .decision = decision, .count = block});
              m.run(BlockAdamUpdate{.to = {p, g, copy},
                                    .m = first,
                                    .moment = moment,
                                    .decision = decision,
                                    .block = block,
                                    .lr_scale = 0.01,
                                    .weight_decay = 0.1,
                                    .decay_last = decay_last});
              return outputs(m, p, first, moment, copy);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("moments of blocks with eps, and of what is no gradient, have the reference's bits") {
  for (const DType dtype : kMasters) {
    for (const bool of_gradient : {true, false}) {
      const auto advanced = [&](Machine& m, double decay_power) {
        const Tensor squares = m.of(Values(500, 3.1), {500}, DType::f64);
        const Tensor moment = m.of(Values(500, 0.7), {500}, m.compute());
        const Tensor decision = decision_of(m, 0.7, 5);
        m.run(BlockMoments{.squares = squares,
                           .moment = moment,
                           .decision = decision,
                           .count = 77,
                           .eps = 1e-3,
                           .decay_power = decay_power,
                           .of_gradient = of_gradient});
        return outputs(m, moment);
      };
      compare([&](Machine& m) { return advanced(m, 0); }, dtype, {.same_bits = true});
      // A GPU's power may end in another bit than a CPU's.
      compare([&](Machine& m) { return advanced(m, 0.8); }, dtype);
    }
  }
}
