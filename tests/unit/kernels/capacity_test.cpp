#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "kernels/router.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

struct Choices {
  std::int64_t experts = 0, sequences = 1, parts = 1, top_k = 1;
  Values expert, score;  // [parts, sequences, rows of a part, top_k]
  Values position;       // [parts, sequences, rows of a part], or empty
  std::int64_t rows() const { return std::ssize(expert) / top_k; }
};

Values limit(Machine& machine, const Choices& c, std::int64_t capacity, DType dtype) {
  const Shape shape{c.rows(), c.top_k};
  const Tensor kept = machine.empty(shape, DType::i32);
  const Tensor position = c.position.empty() && c.rows() > 0
                              ? Tensor()
                              : machine.of(c.position, {c.rows()}, DType::i32);
  machine.run(LimitChoices{.expert = machine.of(c.expert, shape, DType::i32),
                           .score = machine.of(c.score, shape, dtype),
                           .position = position.view(),
                           .kept = kept,
                           .experts = c.experts,
                           .sequences = c.sequences,
                           .parts = c.parts,
                           .capacity = capacity});
  return values_of(kept);
}

Values limit(const Choices& c, std::int64_t capacity,
             const KernelTable& table = cpu_reference_table(), DType dtype = DType::f64,
             int threads = 1) {
  Machine machine(table, dtype, dtype, threads);
  return limit(machine, c, capacity, dtype);
}

// Of each choice, how many of the same expert in the same sequence go before it.
Values counted(const Choices& c, std::int64_t capacity) {
  const std::int64_t of_part = c.rows() / (c.parts * c.sequences);
  const auto at = [](const Values& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  };
  const auto sequence = [&](std::int64_t i) { return i / c.top_k / of_part % c.sequences; };
  const auto position = [&](std::int64_t i) {
    const std::int64_t row = i / c.top_k;
    return c.position.empty() ? static_cast<double>(row) : at(c.position, row);
  };
  Values kept(c.expert.size(), -1);
  for (std::int64_t i = 0; i < std::ssize(c.expert); ++i) {
    std::int64_t before = 0;
    for (std::int64_t j = 0; j < std::ssize(c.expert); ++j) {
      if (at(c.expert, j) != at(c.expert, i) || sequence(j) != sequence(i)) continue;
      const double mine = at(c.score, i), other = at(c.score, j);
      before += other > mine || (other == mine && position(j) < position(i));
    }
    if (before < capacity) kept[static_cast<std::size_t>(i)] = at(c.expert, i);
  }
  return kept;
}

// Few scores, so that many are equal; some choices are none.
Choices random_choices(std::int64_t length, std::int64_t sequences, std::int64_t top_k,
                       std::int64_t experts) {
  const PhiloxKey key = philox_key(7, "test", "choices");
  std::uint64_t word = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(philox_word(key, 1, word++) % static_cast<std::uint32_t>(n));
  };
  Choices c{.experts = experts, .sequences = sequences, .top_k = top_k};
  for (std::int64_t row = 0; row < length * sequences; ++row) {
    // Experts of a row differ; the first ones are taken more often.
    std::int64_t expert = std::min(below(experts), below(experts));
    for (std::int64_t k = 0; k < top_k; ++k) {
      c.expert.push_back(below(9) == 0 ? -1.0 : static_cast<double>(expert));
      c.score.push_back(0.125 * static_cast<double>(below(6)));
      expert = (expert + 1) % experts;
    }
  }
  return c;
}

// The same rows in two parts of each sequence, of which the first has the even positions.
Choices in_parts(const Choices& whole) {
  const std::int64_t length = whole.rows() / whole.sequences;
  Choices c{
      .experts = whole.experts, .sequences = whole.sequences, .parts = 2, .top_k = whole.top_k};
  for (std::int64_t part = 0; part < 2; ++part) {
    for (std::int64_t s = 0; s < whole.sequences; ++s) {
      for (std::int64_t at = part; at < length; at += 2) {
        c.position.push_back(static_cast<double>(at));
        for (std::int64_t k = 0; k < whole.top_k; ++k) {
          const auto i = static_cast<std::size_t>((s * length + at) * whole.top_k + k);
          c.expert.push_back(whole.expert[i]);
          c.score.push_back(whole.score[i]);
        }
      }
    }
  }
  return c;
}

}  // namespace

TEST_CASE("an expert keeps the choices with the largest scores, equal ones by position") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Choices c{
          .experts = 2, .expert = {0, 0, 1, 0, 0, 0}, .score = {0.5, 0.25, 0.125, 0.75, 0.5, 0.5}};
      const auto kept = [&](std::int64_t capacity) { return limit(c, capacity, *table, dtype, 2); };
      CHECK(kept(1) == Values{-1, -1, 1, 0, -1, -1});
      CHECK(kept(2) == Values{0, -1, 1, 0, -1, -1});
      CHECK(kept(3) == Values{0, -1, 1, 0, 0, -1});
      CHECK(kept(6) == c.expert);
      // Each of two sequences has room of its own.
      c.sequences = 2;
      CHECK(kept(1) == Values{0, -1, 1, 0, -1, -1});
      // Positions that are not the order of the rows.
      c.sequences = 1;
      c.position = {5, 4, 3, 2, 1, 0};
      CHECK(kept(2) == Values{-1, -1, 1, 0, -1, 0});
    }
  }
}

TEST_CASE("scores that differ by errors of rounding are equal") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const auto& [dtype, error] : {std::pair(DType::f64, 1e-9), std::pair(DType::f32, 1e-6)}) {
      for (const double score : {0.5, 0.25, 1.0, 0.375}) {
        CAPTURE(score);
        const auto kept = [&](double first, double second) {
          const Choices c{.experts = 1, .expert = {0, 0}, .score = {first, second}};
          return limit(c, 1, *table, dtype);
        };
        CHECK(kept(score * (1 - error), score * (1 + error)) == Values{0, -1});
        CHECK(kept(score, score * (1 + 100 * error)) == Values{-1, 0});
      }
    }
  }
}

TEST_CASE("a score that is no number finds room before all others, so that the step sees it") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Choices c{.experts = 1, .expert = {0, 0, 0, 0}, .score = {1, 0.5, kNan, kNan}};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      CHECK(limit(c, 1, *table, dtype) == Values{-1, -1, 0, -1});
      CHECK(limit(c, 3, *table, dtype) == Values{0, -1, 0, 0});
    }
  }
}

TEST_CASE("limited choices are those that counting finds, whatever threads, types and parts") {
  struct Sizes {
    std::int64_t length, sequences, top_k, experts;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{2, 3, 2, 2}, Sizes{37, 2, 3, 5},
                         Sizes{64, 1, 1, 7}, Sizes{51, 3, 4, 4}, Sizes{0, 2, 2, 3}}) {
    const Choices whole = random_choices(s.length, s.sequences, s.top_k, s.experts);
    for (const std::int64_t capacity : {1, 3, 11, 64}) {
      CAPTURE(s.length);
      CAPTURE(capacity);
      const Values expected = counted(whole, capacity);
      CHECK(limit(whole, capacity) == expected);
      for (const int threads : {1, 2, 7}) {
        CHECK(limit(whole, capacity, cpu_table(), DType::f32, threads) == expected);
      }
      if (s.length % 2 != 0) continue;
      const Choices parts = in_parts(whole);
      const Values of_parts = counted(parts, capacity);
      CHECK(limit(parts, capacity) == of_parts);
      CHECK(limit(parts, capacity, cpu_table(), DType::f32, 3) == of_parts);
    }
  }
}

TEST_CASE("parts of sequences keep what whole sequences do") {
  const Choices whole = random_choices(32, 3, 2, 4);
  const Values kept = limit(whole, 5), of_parts = limit(in_parts(whole), 5);
  CHECK(kept != whole.expert);
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t at = 0; at < 32; ++at) {
      const std::size_t row = (at % 2 * 3 + s) * 16 + at / 2;
      for (std::size_t k = 0; k < 2; ++k) {
        CHECK(of_parts[2 * row + k] == kept[2 * (s * 32 + at) + k]);
      }
    }
  }
}

TEST_CASE("scores of chosen experts are neither shared nor scaled") {
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    Machine machine(cpu_table(), DType::f32, DType::f32, 2);
    const Tensor expert = machine.empty({1, 2}, DType::i32);
    const Tensor weight = machine.empty({1, 2}, DType::f32);
    const Tensor score = machine.empty({1, 2}, DType::f32);
    const Tensor logits = machine.of({0, 2, 1}, {1, 3}, DType::f32);
    RouteTokens route{.logits = logits,
                      .bias = {},
                      .expert = expert,
                      .weight = weight,
                      .score = score,
                      .rule = {.top_k = 2, .scores = scores, .normalize = true, .scale = 3}};
    machine.run(route);
    const double e1 = std::exp(1.0), e2 = std::exp(2.0);
    const bool soft = scores == RouterScores::softmax;
    CHECK(values_of(score)[0] ==
          doctest::Approx(soft ? e2 / (1 + e1 + e2) : 1 / (1 + 1 / e2)).epsilon(1e-6));
    CHECK(values_of(score)[1] ==
          doctest::Approx(soft ? e1 / (1 + e1 + e2) : 1 / (1 + 1 / e1)).epsilon(1e-6));
    const Tensor nan = machine.of({0, 2, std::nan("")}, {1, 3}, DType::f32);
    route.logits = nan;
    machine.run(route);
    CHECK(std::isnan(values_of(score)[0]));
  }
}

TEST_CASE("limits of choices that make no sense, and experts that there are not, are errors") {
  const Choices c{.experts = 2, .expert = {0, 1, 1, 0}, .score = {1, 1, 1, 1}};
  CHECK_THROWS_AS(limit(c, 0), InternalError);
  Choices wrong = c;
  wrong.sequences = 3;
  CHECK_THROWS_AS(limit(wrong, 1), InternalError);
  wrong = c;
  wrong.parts = 2;  // without positions
  CHECK_THROWS_AS(limit(wrong, 1), InternalError);
  wrong = c;
  wrong.expert[1] = 2;
  CHECK_THROWS_AS(limit(wrong, 1), InternalError);
  CHECK_THROWS_AS(limit(wrong, 1, cpu_table(), DType::f32), InternalError);
}

}  // namespace llmtrain::kernels
