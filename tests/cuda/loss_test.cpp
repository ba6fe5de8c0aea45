#include "kernels/loss.hpp"

#include "kernels/elementwise.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

/// Types of a model; the logits of a bf16 or fp16 model are FP32, or of its type.
struct LogitsOf {
  DType model;
  bool narrow;
};
constexpr LogitsOf kLogits[] = {{DType::f64, false}, {DType::f32, false}, {DType::bf16, false},
                                {DType::f16, false}, {DType::bf16, true}, {DType::f16, true}};

/// The square of a logarithm is off twice as far, beside what a GPU's tanh is in a soft cap.
constexpr Limits kLimits{.floor = 6};

std::vector<std::int32_t> targets(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < rows; ++i) {
    result.push_back(i % 4 == 2 ? -1
                                : static_cast<std::int32_t>((i * 7919 + classes - 1) % classes));
  }
  return result;
}

struct Case {
  std::int64_t rows, cols, classes, gap;
};

/// Logits of a model of that type, wide or narrow: drawn in the type that they will have.
Tensor draw_logits(Machine& m, std::string_view name, const Case& c, DType dtype, bool narrow) {
  return m.normals(name, {c.rows, c.cols}, narrow ? m.compute() : m.wide(),
                   narrow ? dtype : DType::f32, c.gap);
}

/// dlogits over the logits themselves, in the type of a bf16 or fp16 model half as wide.
View over(const Tensor& logits, DType dtype) {
  View view = logits.view();
  view.row_stride =
      view.row_stride * static_cast<std::int64_t>(size_of(view.dtype) / size_of(dtype));
  view.dtype = dtype;
  return view;
}

}  // namespace

TEST_CASE("cross-entropy and its gradient, beside the logits and in their place") {
  // One class; padding that no pack divides; rows of several rounds; rows that shared memory does
  // not hold; unaligned rows; rows of exactly 48 KiB, which a kernel with variables of its own does
  // not have unasked, in FP32 and FP64.
  for (const Case& c :
       {Case{3, 1, 1, 0}, Case{5, 37, 37, 0}, Case{9, 256, 256, 0}, Case{5, 512, 501, 8},
        Case{4, 10000, 9973, 0}, Case{3, 8196, 8196, 4}, Case{2, 26000, 25990, 0},
        Case{1, 12288, 12288, 0}, Case{1, 6144, 6144, 0}, Case{0, 16, 16, 0}}) {
    for (const auto& [dtype, narrow] : kLogits) {
      for (const double cap : {0.0, 3.0}) {
        CAPTURE(c.cols);
        CAPTURE(narrow);
        CAPTURE(cap);
        compare(
            [&, dtype = dtype, narrow = narrow](Machine& m) {
              const Shape shape{c.rows, c.cols};
              const Tensor logits = draw_logits(m, "z", c, dtype, narrow);
              const Tensor loss = m.empty({c.rows}, m.wide()), alone = m.empty({c.rows}, m.wide());
              const Tensor dlogits = m.empty(shape, m.compute(), 2 * c.gap);
              const Tensor target = m.integers(targets(c.rows, c.classes));
              CrossEntropy op{.logits = logits,
                              .target = target,
                              .loss = alone,
                              .num_classes = c.classes,
                              .grad_scale = 0.37,
                              .softcap = cap};
              m.run(op);
              op.loss = loss;
              op.dlogits = dlogits;
              m.run(op);
              const Tensor z_loss = m.empty({c.rows}, m.wide());
              const Tensor with_z_loss = m.empty(shape, m.compute(), 2 * c.gap);
              op.z_loss_coef = 0.02;
              op.z_loss = z_loss;
              op.dlogits = with_z_loss;
              m.run(op);
              // By the numbers that stand on the device: of the step, and the scale of the loss.
              const Tensor scaled = m.empty(shape, m.compute());
              const Tensor scalars = m.of({7, 0.2, 0, 0}, {StepScalars::kScalars}, DType::f64);
              Values numbers(UpdateDecision::kScalars, 0.0);
              numbers[7] = 64;  // loss_scale
              const Tensor decision = m.of(numbers, {UpdateDecision::kScalars}, DType::f64);
              op.dlogits = scaled;
              op.scalars = scalars;
              op.decision = decision;
              m.run(op);
              return outputs(m, alone, loss, z_loss, dlogits, with_z_loss, scaled);
            },
            dtype, kLimits);
      }
    }
  }
}

TEST_CASE("statistics of a part of the vocabulary, and the loss from those of all parts") {
  for (const Case& c : {Case{3, 1, 1, 0}, Case{5, 37, 37, 0}, Case{9, 256, 250, 0},
                        Case{4, 10000, 9973, 0}, Case{0, 16, 16, 0}}) {
    for (const auto& [dtype, narrow] : kLogits) {
      for (const double cap : {0.0, 3.0}) {
        CAPTURE(c.cols);
        CAPTURE(narrow);
        CAPTURE(cap);
        compare(
            [&, dtype = dtype, narrow = narrow](Machine& m) {
              const Shape shape{c.rows, c.cols};
              const Tensor target = m.integers(targets(c.rows, 2 * c.classes + 3));
              const Tensor statistics = m.empty({2 * c.rows, 3}, m.wide());
              const Tensor loss = m.empty({c.rows}, m.wide()), z_loss = m.empty({c.rows}, m.wide());
              const Tensor dlogits = m.empty(shape, m.compute());
              const Tensor logits[] = {draw_logits(m, "a", c, dtype, narrow),
                                       draw_logits(m, "b", c, dtype, narrow)};
              for (const std::int64_t p : {0, 1}) {
                m.run(LogitStatistics{
                    .logits = logits[p],
                    .target = target,
                    .statistics = statistics.row_range(p * c.rows, c.rows),
                    .num_classes = c.classes,
                    .softcap = cap,
                    .part = {.first = p * c.classes + 3 * p, .whole = 2 * c.classes + 3}});
              }
              m.run(CrossEntropy{.logits = logits[1],
                                 .target = target,
                                 .loss = loss,
                                 .dlogits = dlogits,
                                 .num_classes = c.classes,
                                 .part = {.first = c.classes + 3, .whole = 2 * c.classes + 3},
                                 .statistics = statistics,
                                 .grad_scale = 0.37,
                                 .softcap = cap,
                                 .z_loss_coef = 0.02,
                                 .z_loss = z_loss});
              return outputs(m, statistics, loss, z_loss, dlogits);
            },
            dtype, kLimits);
      }
    }
  }
}

TEST_CASE("a gradient in the place of its logits is the gradient beside them") {
  for (const Case& c :
       {Case{3, 37, 37, 0}, Case{4, 512, 501, 8}, Case{3, 26000, 25990, 0},
        Case{2, 60000, 59990, 0}, Case{1, 52001, 52001, 0}, Case{2, 4100, 4099, 4}}) {
    for (const auto& [dtype, narrow] : kLogits) {
      CAPTURE(c.cols);
      CAPTURE(narrow);
      Machine m(Place::gpu, dtype, dtype);
      const Shape shape{c.rows, c.cols};
      const Tensor logits = draw_logits(m, "z", c, dtype, narrow);
      const Tensor loss = m.empty({c.rows}, m.wide()), dlogits = m.empty(shape, m.compute());
      const Tensor target = m.integers(targets(c.rows, c.classes));
      CrossEntropy op{.logits = logits,
                      .target = target,
                      .loss = loss,
                      .dlogits = dlogits.view(),
                      .num_classes = c.classes};
      m.run(op);
      const Values beside = m.read(dlogits), loss_beside = m.read(loss);
      op.dlogits = over(logits, m.compute());
      m.run(op);
      CHECK(max_difference(m.read(loss), loss_beside) == 0);
      // Read as it lies there: each row from where the logits' began.
      const Tensor copy = m.empty(shape, m.compute());
      m.run(ScaleCast{.x = op.dlogits, .y = copy});
      CHECK(max_difference(m.read(copy), beside) == 0);
    }
  }
}

TEST_CASE("logits of -inf have no probability, and what is not finite shows") {
  const auto losses = [](Place place) {
    Machine m(place, DType::f32, DType::f32);
    Values z(5 * 200, 0.25);
    for (std::size_t j = 0; j < 200; ++j) {
      if (j != 7 && j != 9) z[j] = -INFINITY;  // row 0: two classes
      z[2 * 200 + j] = -INFINITY;              // row 2: none
    }
    z[200 + 150] = NAN;
    z[3 * 200 + 5] = INFINITY;
    const Tensor logits = m.of(z, {5, 200}, DType::f32), loss = m.empty({5}, DType::f32);
    const Tensor target = m.integers(std::vector<std::int32_t>{9, 1, 1, 1, 1});
    m.run(CrossEntropy{.logits = logits, .target = target, .loss = loss, .num_classes = 200});
    return m.read(loss);
  };
  const Values gpu_losses = losses(Place::gpu), reference = losses(Place::reference);
  CHECK(gpu_losses[0] == doctest::Approx(std::log(2.0)));
  CHECK(gpu_losses[4] == doctest::Approx(std::log(200.0)));
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(std::isfinite(gpu_losses[i]) == std::isfinite(reference[i]));
  }
}

TEST_CASE("a target that is no class makes its row's loss NaN, and no other's") {
  Machine m(Place::gpu, DType::bf16, DType::bf16);
  const Tensor logits = m.normals("z", {4, 40}, DType::f32, DType::f32);
  const Tensor loss = m.empty({4}, DType::f32), dlogits = m.empty({4, 40}, DType::bf16);
  const Tensor target = m.integers(std::vector<std::int32_t>{38, 0, -2, 2147483647});
  m.run(CrossEntropy{
      .logits = logits, .target = target, .loss = loss, .dlogits = dlogits, .num_classes = 38});
  const Values losses = m.read(loss), gradient = m.read(dlogits);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(std::isnan(losses[i]) == (i != 1));
    CHECK(std::isnan(gradient[40 * i]) == (i != 1));
    CHECK(gradient[40 * i + 39] == 0);
  }
}

TEST_CASE("sums in FP64") {
  for (const std::int64_t n : {0, 1, 37, 1024, 1025, 40 * 1024 + 5}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(n);
      Values results[2];
      for (const Place place : {Place::reference, Place::gpu}) {
        Machine m(place, dtype, dtype);
        const Tensor x = m.operand("x", {n}), out = m.of({100}, {1}, DType::f64);
        m.run(Sum{.x = x, .out = out});
        results[place == Place::gpu] = m.read(out);
      }
      CHECK(max_difference(results[0], results[1]) <= 1e-11);
    }
  }
}
