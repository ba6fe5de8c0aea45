#include "kernels/optimizer.hpp"

#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kMasters[] = {DType::f64, DType::f32};
constexpr std::int64_t kRun = 16 * SquaredNorm::kBlock;  // what a thread block sums

double squared_norm_on(Place place, const Values& values, DType dtype) {
  Machine m(place, dtype, dtype);
  const Tensor g = m.of(values, {static_cast<std::int64_t>(values.size())}, dtype);
  const Tensor out = m.empty({1}, DType::f64);
  m.run(SquaredNorm{.g = g, .out = out});
  return m.read(out)[0];
}

}  // namespace

TEST_CASE("the squared norm has the reference's bits at every size") {
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{15}, std::int64_t{17}, std::int64_t{1023},
        std::int64_t{1024}, std::int64_t{1025}, std::int64_t{2048 + 100}, kRun - 1, kRun, kRun + 1,
        3 * kRun + 1500, 9 * kRun + 7 * SquaredNorm::kBlock}) {
    CAPTURE(n);
    for (const DType dtype : kMasters) {
      compare(
          [&](Machine& m) {
            const Tensor g = m.operand("g", {n}), out = m.empty({1}, DType::f64);
            m.run(SquaredNorm{.g = g, .out = out});
            return outputs(m, out);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("the squared norm of more runs than one thread block joins") {
  Values values(static_cast<std::size_t>(1025 * kRun + 77));
  std::uint32_t state = 1;
  for (double& x : values) {
    state = state * 1664525 + 1013904223;
    x = (state >> 8) * 0x1p-24 - 0.4;
  }
  CHECK(squared_norm_on(Place::gpu, values, DType::f32) ==
        squared_norm_on(Place::reference, values, DType::f32));
}

TEST_CASE("the squared norm of what is not finite is not finite") {
  for (const DType dtype : kMasters) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{1029}, std::size_t{20011}}) {
      Values values(20012, 0.5);
      values[at] = INFINITY;
      CHECK(squared_norm_on(Place::gpu, values, dtype) == INFINITY);
      values[at] = NAN;
      CHECK(std::isnan(squared_norm_on(Place::gpu, values, dtype)));
    }
  }
}

TEST_CASE("clipping by value has the reference's bits and keeps a NaN") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t n : {0, 1, 37, 4096, 5000}) {
      for (const double limit : {0.0, 0.7}) {
        compare(
            [&](Machine& m) {
              const Tensor g = m.operand("g", {n});
              const Tensor special = m.of({NAN, INFINITY, -INFINITY, -0.0}, {4}, m.compute());
              m.run(ClipByValue{.g = g, .limit = limit});
              m.run(ClipByValue{.g = special, .limit = limit});
              return outputs(m, g, special);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("Adam has the reference's bits") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t n : {0, 1, 39, 4096, 5002}) {
      for (const bool decoupled : {false, true}) {
        for (const DType copy_type : {DType::bf16, DType::f32}) {
          CAPTURE(n);
          compare(
              [&](Machine& m) {
                const Tensor p = m.operand("p", {n}), g = m.operand("g", {n});
                const Tensor moment = m.operand("m", {n}), copy = m.empty({n}, copy_type);
                const Tensor square =
                    m.of(Values(static_cast<std::size_t>(n), 0.01), {n}, m.compute());
                AdamUpdate update{.to = {.parameter = p, .gradient = g, .grad_scale = 0.3},
                                  .m = moment,
                                  .v = square,
                                  .lr = 3e-3,
                                  .weight_decay = 0.1,
                                  .decoupled = decoupled,
                                  .step = 7};
                m.run(update);  // without a copy
                update.to.compute_copy = copy;
                update.step = 8;
                m.run(update);
                return outputs(m, p, moment, square, copy);
              },
              dtype, {.same_bits = true});
        }
      }
    }
  }
}

TEST_CASE("SGD has the reference's bits, with momentum and without") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t n : {0, 1, 39, 4096, 5002}) {
      for (const bool nesterov : {false, true}) {
        CAPTURE(n);
        compare(
            [&](Machine& m) {
              const Tensor p = m.operand("p", {n}), q = m.operand("q", {n});
              const Tensor g = m.operand("g", {n}), copy = m.empty({n}, DType::bf16);
              const Tensor buffer =
                  m.empty({n}, m.compute());  // NaN: the first step must not read it
              SgdUpdate update{.to = {.parameter = p,
                                      .gradient = g,
                                      .compute_copy = copy.view(),
                                      .grad_scale = 0.3},
                               .momentum_buffer = buffer,
                               .lr = 0.1,
                               .momentum = 0.9,
                               .dampening = 0.2,
                               .weight_decay = 0.01,
                               .nesterov = nesterov,
                               .first = true};
              m.run(update);
              update.first = false;
              m.run(update);
              m.run(SgdUpdate{.to = {.parameter = q, .gradient = g}, .lr = 0.1});
              return outputs(m, p, buffer, copy, q);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}
