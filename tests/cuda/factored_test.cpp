// Second moments of rows and columns, and updates of matrices, on the device: the reference's bits.
#include "kernels/factored.hpp"

#include "tests/cuda/optimizer_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

// Less than a pack, packs and no packs, several tiles of rows and of columns, several matrices, and
// more chunks of rows than are joined at once.
constexpr Matrices kShapes[] = {{1, 1, 1},     {1, 1, 7},     {1, 7, 1},      {1, 5, 7},
                                {3, 40, 96},   {1, 129, 300}, {1, 300, 129},  {1, 1, 70'001},
                                {2, 70, 1032}, {5, 3, 1},     {1, 17'000, 4}, {0, 3, 4}};

const Tensor kNone;

/// Numbers that roots and bounds may have.
Tensor positive(Machine& m, std::string_view name, std::int64_t n) {
  Values values = m.read(m.normals(name, {n}, DType::f64, DType::f32));
  for (double& x : values) x = static_cast<float>(x * x + 0x1p-10);
  return m.of(values, {n}, m.compute());
}

/// The last `n` elements of a tensor that has `before` more: what begins at no multiple of a pack.
Tensor operand_at(Machine& m, std::string_view name, std::int64_t before, std::int64_t n) {
  return m.operand(name, {before + n, 1}).reshape({before + n}).columns(before, n);
}

/// Operands of one parameter, of which a vector has no values of rows.
struct Case {
  Matrices shape;
  Tensor x, rows, columns, totals, decision, out;

  Case(Machine& m, const Matrices& of, std::int64_t before, bool applies = true)
      : shape(of),
        x(operand_at(m, "x", before, of.numel())),
        rows(of.rows == 1 ? kNone : positive(m, "rows", of.count * of.rows)),
        columns(positive(m, "columns", of.count * of.columns)),
        totals(m.empty({of.count}, DType::f64)),
        decision(decision_of(m, 0.7, 5, applies)),
        out(m.zeros({of.numel()}, m.compute())) {
    if (rows.defined()) m.run(RowTotals{.x = rows, .out = totals});
  }
};

/// `trial` of every shape, in both types, of operands that do and do not lie at multiples of a
/// pack, where the decision applies and where it does not.
template <class F>
void compare_all(const F& trial, std::initializer_list<bool> decisions = {true, false}) {
  for (const Matrices& shape : kShapes) {
    for (const DType dtype : kMasters) {
      for (const std::int64_t before : {0, 1}) {
        for (const bool applies : decisions) {
          CAPTURE(shape.rows);
          CAPTURE(shape.columns);
          CAPTURE(before);
          compare([&](Machine& m) { return trial(m, Case(m, shape, before, applies)); }, dtype,
                  {.same_bits = true});
        }
      }
    }
  }
}

struct Run {
  std::int64_t matrices, each;
};
constexpr Run kRuns[] = {{1, 1},      {1, 7},     {3, 1}, {3, 3840}, {2, 1030}, {2, kListChunk + 4},
                         {1, 70'001}, {2, 35'003}};

Tensor squares_of(Machine& m, const Run& run, double of_first) {
  Values values;
  for (std::int64_t k = 0; k < run.matrices; ++k) {
    values.push_back((of_first + 0.75 * static_cast<double>(k)) * static_cast<double>(run.each));
  }
  return m.of(values, {run.matrices}, DType::f64);
}

/// Whether there is a moment, and of what.
enum class Moment : std::uint8_t { none, of_rated_steps, of_steps };
constexpr Moment kMoments[] = {Moment::none, Moment::of_rated_steps, Moment::of_steps};

/// An update of `to`, whose gradient is the step too; returns the moment.
Tensor run_step(Machine& m, const Run& run, Moment moment, const UpdateOperands& to,
                bool applies = true, bool decay_last = false) {
  const Tensor first = m.operand("m", {run.matrices * run.each});
  const Tensor steps = squares_of(m, run, 0.5), sizes = squares_of(m, run, 1e-8);
  const Tensor decision = decision_of(m, 0.7, 5, applies);
  m.run(MatrixStepUpdate{.to = to,
                         .u = to.gradient,
                         .m = moment == Moment::none ? View{} : first.view(),
                         .clip = {.squares = steps, .numel = run.each},
                         .parameter_squares = sizes,
                         .decision = decision,
                         .matrices = run.matrices,
                         .lr_scale = 0.01,
                         .weight_decay = 0.1,
                         .beta1 = 0.9,
                         .relative = true,
                         .rate_in_moment = moment == Moment::of_rated_steps,
                         .decay_last = decay_last});
  m.read(first);  // the operands live until the device is done
  return first;
}

}  // namespace

TEST_CASE("sums over columns have the reference's bits") {
  compare_all(
      [](Machine& m, const Case& c) {
        const Tensor columns = m.empty({c.columns.numel()}, DType::f64);
        m.run(ColumnSquares{.x = c.x, .shape = c.shape, .out = columns});
        return outputs(m, columns);
      },
      {true});
}

TEST_CASE("totals of rows have the reference's bits") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t n : {0, 1, 255, 256, 257, 20'000}) {
      CAPTURE(n);
      compare(
          [&](Machine& m) {
            const Tensor x = m.operand("x", {3 * n}), out = m.empty({3}, DType::f64);
            m.run(RowTotals{.x = x, .out = out});
            return outputs(m, out);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("factored scales have the reference's bits") {
  for (const bool is_gradient : {true, false}) {
    compare_all([&](Machine& m, const Case& c) {
      m.run(FactoredScale{.x = c.x,
                          .rows = c.rows,
                          .totals = c.totals,
                          .columns = c.columns,
                          .shape = c.shape,
                          .all_rows = c.shape.rows + 2,
                          .is_gradient = is_gradient,
                          .decision = c.decision,
                          .y = is_gradient ? c.out : c.x});
      return outputs(m, c.out, c.x);
    });
  }
}

TEST_CASE("covers have the reference's bits") {
  compare_all([](Machine& m, const Case& c) {
    const Tensor new_columns = m.output({c.columns.numel()});
    const Tensor new_rows = c.rows.defined() ? m.output({c.rows.numel()}) : kNone;
    m.run(CoverScale{.g = c.x,
                     .rows = c.rows,
                     .columns = c.columns,
                     .shape = c.shape,
                     .decision = c.decision,
                     .u = c.out});
    m.run(CoverMaxima{.g = c.x,
                      .rows = c.rows,
                      .columns = c.columns,
                      .shape = c.shape,
                      .decision = c.decision,
                      .new_rows = new_rows,
                      .new_columns = new_columns});
    return c.rows.defined() ? outputs(m, c.out, new_columns, new_rows)
                            : outputs(m, c.out, new_columns);
  });
}

TEST_CASE("squares of masters have the reference's bits in every form") {
  std::vector<Run> runs(std::begin(kRuns), std::end(kRuns));
  runs.push_back({2, 33 * kListChunk + 1029});  // more chunks than a thread joins
  for (const Run& run : runs) {
    for (const std::int64_t before : {0, 1}) {
      CAPTURE(run.matrices);
      CAPTURE(run.each);
      const std::int64_t n = run.matrices * run.each;
      for (const DType dtype : kMasters) {
        compare(
            [&](Machine& m) {
              const Tensor p = operand_at(m, "p", before, n),
                           out = m.empty({run.matrices}, DType::f64);
              m.run(MasterSquares{.to = {p, p}, .out = out});
              return outputs(m, out);
            },
            dtype, {.same_bits = true});
      }
      const auto of_halves = [&](Place place) {
        Machine m(place, DType::f32, DType::f32);
        const Tensor all = m.normals("p", {before + n, 1}, DType::bf16, DType::bf16);
        const Tensor high = all.reshape({before + n}).columns(before, n);
        const Tensor g = m.zeros({n}, DType::f32), out = m.empty({run.matrices}, DType::f64);
        const Tensor low =
            m.integers(std::vector<std::uint16_t>(static_cast<std::size_t>(n), 40'099));
        UpdateOperands to{.parameter = {}, .gradient = g, .compute_copy = high};
        m.run(MasterSquares{.to = to, .out = out});
        Values found = m.read(out);
        to.remainder = low;
        m.run(MasterSquares{.to = to, .out = out});
        for (const double sum : m.read(out)) found.push_back(sum);
        return found;
      };
      CHECK(of_halves(Place::gpu) == of_halves(Place::reference));
    }
  }
}

TEST_CASE("updates by steps of matrices have the reference's bits") {
  for (const Run& run : kRuns) {
    for (const Moment moment : kMoments) {
      for (const DType dtype : kMasters) {
        for (const bool applies : {true, false}) {
          CAPTURE(run.matrices);
          CAPTURE(run.each);
          compare(
              [&](Machine& m) {
                const std::int64_t n = run.matrices * run.each, before = applies ? 0 : 1;
                const Tensor p = operand_at(m, "p", before, n), u = m.operand("u", {n});
                const Tensor copy = m.zeros({n}, n % 2 == 0 ? DType::bf16 : DType::f16);
                const Tensor first = run_step(m, run, moment, {p, u, copy}, applies);
                const Tensor second = run_step(m, run, moment, {p, u, copy}, applies, true);
                return outputs(m, p, copy, first, second);
              },
              dtype, {.same_bits = true});
        }
      }
    }
  }
}

TEST_CASE("updates by steps of matrices have these bits in every form of the master") {
  for (const Run& run : kRuns) {
    for (const bool halves : {false, true}) {
      CAPTURE(run.matrices);
      CAPTURE(run.each);
      const std::int64_t n = run.matrices * run.each;
      const auto left = [&](Place place) {
        Machine m(place, DType::f32, DType::f32);
        const Tensor high = m.normals("p", {n}, DType::bf16, DType::bf16);
        const Tensor low = m.integers(std::vector<std::uint16_t>(static_cast<std::size_t>(n), 99));
        const Tensor u = m.operand("u", {n});
        UpdateOperands to{.parameter = {}, .gradient = u, .compute_copy = high};
        if (halves) {
          to.remainder = low;
        } else {
          to.rounding = {.on = true,
                         .key = philox_key(3, "stochastic rounding", "w"),
                         .first = 5,
                         .columns = 7,
                         .stride = 19};
        }
        // Twice, so that what the remainder holds counts.
        run_step(m, run, Moment::none, to, true, true);
        const Tensor first = run_step(m, run, Moment::of_rated_steps, to);
        return std::vector<Values>{m.read(high), m.read(first)};
      };
      CHECK(left(Place::gpu) == left(Place::reference));
    }
  }
}

TEST_CASE("CAME's moments have the reference's bits") {
  for (const Run& run : kRuns) {
    for (const DType dtype : kMasters) {
      for (const bool applies : {true, false}) {
        CAPTURE(run.matrices);
        CAPTURE(run.each);
        compare(
            [&](Machine& m) {
              const std::int64_t n = run.matrices * run.each;
              const Tensor u = operand_at(m, "u", applies ? 0 : 1, n), first = m.operand("m", {n});
              const Tensor squares = squares_of(m, run, 0.5);
              const Tensor decision = decision_of(m, 0.7, 5, applies);
              m.run(CameMoment{.u = u,
                               .m = first,
                               .clip = {.squares = squares, .numel = run.each},
                               .decision = decision,
                               .matrices = run.matrices});
              return outputs(m, u, first);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}
