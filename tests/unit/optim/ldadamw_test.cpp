// What LDAdam keeps between updates, and what becomes of it in steps that are not like others.
#include <doctest/doctest.h>

#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

using Values = std::vector<double>;

const std::vector<ParameterSpec> kMatrices{
    {.name = "tall", .shape = {40, 12}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "square", .shape = {9, 9}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "experts", .shape = {3, 8, 5}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "bias", .shape = {7}, .role = ParameterRole::bias, .init = {}}};

/// An optimizer of kMatrices.
struct Trained {
  Rig rig;
  OptimizerOptions options;
  std::unique_ptr<OptimizerSet> set;

  explicit Trained(const std::string& keys, const ParameterDTypes& dtypes = kFp64)
      : rig(dtypes, kMatrices) {
    read_options(options, "name: ldadamw\nlr: 0.1\nmax_grad_norm: null\n" + keys);
    set = std::make_unique<OptimizerSet>(rig.ctx, options, rig.store, rig.mesh);
  }
  Values state(std::string_view name) const {
    for (const StateTensor& s : set->states()) {
      if (s.name == name) return values_of(s.tensor);
    }
    FAIL("no state " << name);
    return {};
  }
  Values gradient(std::string_view name) const { return values_of(rig.store.find(name).grad()); }
  void step() { CHECK(run_step(rig, *set, 1.0).applied); }
  auto contents() const { return rig.contents(*set); }
};

/// How far the columns of a [rows, cols], or its rows, are from an orthonormal set.
double skewness(const Values& a, std::size_t rows, std::size_t cols, bool of_rows) {
  const std::size_t count = of_rows ? rows : cols, length = of_rows ? cols : rows;
  const auto at = [&](std::size_t k, std::size_t j) {
    return of_rows ? a[k * cols + j] : a[j * cols + k];
  };
  double most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k <= i; ++k) {
      double sum = i == k ? -1 : 0;
      for (std::size_t j = 0; j < length; ++j) sum += at(i, j) * at(k, j);
      most = std::max(most, std::abs(sum));
    }
  }
  return most;
}

}  // namespace

TEST_CASE("LDAdam keeps a projector, two moments and an error of each matrix") {
  const Trained with("rank: 8\n", kBf16), without("rank: 8\nerror_feedback: false\n", kBf16);
  std::vector<std::string> found;
  for (const StateTensor& s : with.set->states()) {
    CHECK(s.tensor.dtype() == DType::f32);
    found.push_back(fmt::format("{} {}", s.name, to_string(s.tensor.shape())));
  }
  CHECK(found == std::vector<std::string>{
                     "tall#projector [8, 12]", "tall#m [40, 8]", "tall#v [40, 8]",
                     "tall#error [40, 12]", "square#projector [9, 8]", "square#m [8, 9]",
                     "square#v [8, 9]", "square#error [9, 9]", "experts#projector [3, 5, 5]",
                     "experts#m [3, 8, 5]", "experts#v [3, 8, 5]", "experts#error [3, 8, 5]",
                     "bias#m [7]", "bias#v [7]"});
  const auto bytes = [](const Trained& t, const char* name, std::int64_t elements) {
    return t.set->state_bytes(t.rig.store.find(name), elements);
  };
  CHECK(bytes(with, "tall", 480).kept == 4 * (8 * 12 + 2 * 40 * 8 + 480));
  CHECK(bytes(without, "tall", 480).kept == 4 * (8 * 12 + 2 * 40 * 8));
  CHECK(bytes(with, "experts", 80).written == 4 * 2 * (5 * 5 + 2 * 8 * 5 + 40));
  CHECK(without.set->states().size() == with.set->states().size() - 3);
}

TEST_CASE("a subspace, moments and an error outlive a step that does not apply, and a first one") {
  for (const bool is_first : {true, false}) {
    Trained with("rank: 3\n"), without("rank: 3\n");
    for (int t = 1; t <= 4; ++t) {
      if ((t == 1) == is_first) {
        const auto before = with.contents();
        with.rig.set_gradients(100 + t, 1.0);
        set_values(with.rig.store.find("bias").grad(), Values(7, static_cast<double>(NAN)));
        CHECK(!run_step(with.rig, *with.set, 1.0).applied);
        CHECK(with.contents() == before);
      }
      with.rig.set_gradients(t, 1.0);
      without.rig.set_gradients(t, 1.0);
      with.step();
      without.step();
      CHECK(with.contents() == without.contents());
    }
  }
}

TEST_CASE("the error lies beside gradients, which are left as they are and may be cleared") {
  Trained trained("rank: 3\n"), untouched("rank: 3\n");
  for (int t = 1; t <= 3; ++t) {
    for (Trained* one : {&trained, &untouched}) {
      one->rig.set_gradients(t, 1.0);
      const Values before = one->gradient("tall");
      one->step();
      CHECK(one->gradient("tall") == before);
    }
    const Values error = trained.state("tall#error");
    CHECK(std::any_of(error.begin(), error.end(), [](double x) { return std::abs(x) > 0.1; }));
    trained.set->zero_grads(trained.rig.ctx);
    CHECK(trained.gradient("tall") == Values(480));
    CHECK(trained.state("tall#error") == error);
    CHECK(trained.contents() == untouched.contents());
  }
}

TEST_CASE("nothing of a gradient is lost: it is in means, those that are to come, or the error") {
  for (const double beta1 : {0.908, 0.5, 0.0}) {
    CAPTURE(beta1);
    Trained trained(fmt::format("rank: 4\nbetas: [{}, 0.9]\nrho: 0.3\n", beta1));
    // All gradients so far, less what the means of each update had of them.
    Values rest(480);
    for (int t = 1; t <= 5; ++t) {
      trained.rig.set_gradients(t, 1.0);
      trained.step();
      const Values m = trained.state("tall#m"), projector = trained.state("tall#projector"),
                   error = trained.state("tall#error"), gradient = trained.gradient("tall");
      double outside = 0;
      for (std::size_t i = 0; i < rest.size(); ++i) {
        double mean = 0;
        for (std::size_t k = 0; k < 4; ++k) {
          mean += m[i / 12 * 4 + k] * projector[k * 12 + i % 12];
        }
        rest[i] += gradient[i] - mean;
        CHECK(std::abs(rest[i] - beta1 / (1 - beta1) * mean - error[i]) < 1e-12);
        outside += error[i] * error[i];
      }
      CHECK(outside > 10);
    }
  }
}

TEST_CASE("the norm that clips is that of gradients without errors") {
  Trained trained("rank: 2\n");
  for (int t = 1; t <= 3; ++t) {
    trained.rig.set_gradients(t, 1.0);
    double squares = 0;
    for (const auto& p : trained.rig.store.all()) {
      for (const double g : values_of(p->grad())) squares += g * g;
    }
    const double norm = run_step(trained.rig, *trained.set, 1.0).grad_norm;
    CHECK(std::abs(norm - std::sqrt(squares)) < 1e-12 * norm);
  }
}

TEST_CASE("the share of the mean is rho, whatever the decay of the mean") {
  Trained one("rank: 3\n"), other("rank: 3\nrho: 0.2\n"), decay("rank: 3\nbetas: [0.2, 0.99]\n");
  for (int t = 1; t <= 3; ++t) {
    for (Trained* trained : {&one, &other, &decay}) {
      trained->rig.set_gradients(t, 1.0);
      trained->step();
    }
    // The first choice sees a gradient alone.
    const Values projector = one.state("tall#projector");
    CHECK((other.state("tall#projector") == projector) == (t == 1));
    CHECK((decay.state("tall#projector") == projector) == (t == 1));
  }
}

TEST_CASE("a subspace of all dims has no error but rounding") {
  for (const ParameterDTypes& dtypes : {kFp64, kFp32}) {
    Trained trained("rank: 100\n", dtypes);
    for (int t = 1; t <= 4; ++t) {
      trained.rig.set_gradients(t, 1.0);
      trained.step();
      const double limit = dtypes.master == DType::f64 ? 1e-13 : 1e-4;
      for (const char* name : {"tall#error", "square#error", "experts#error"}) {
        for (const double x : trained.state(name)) CHECK(std::abs(x) < limit);
      }
      CHECK(skewness(trained.state("square#projector"), 9, 9, false) < limit);
    }
  }
}

TEST_CASE("gradients of zero move nothing and keep subspaces orthonormal") {
  for (const ParameterDTypes& dtypes : {kFp64, kFp32}) {
    const double limit = dtypes.master == DType::f64 ? 1e-14 : 1e-6;
    // None from the first update on, and some before.
    for (const int first_zero : {1, 3}) {
      Trained trained("rank: 3\nerror_feedback: false\n", dtypes);
      for (int t = 1; t <= 6; ++t) {
        trained.rig.set_gradients(t, t < first_zero || t == 6 ? 1.0 : 0.0);
        const Values before = values_of(trained.rig.store.find("tall").master());
        trained.step();
        const Values now = values_of(trained.rig.store.find("tall").master());
        for (const double x : now) CHECK(std::isfinite(x));
        CHECK((now == before) == (first_zero == 1 && t < 6));
        CHECK(skewness(trained.state("tall#projector"), 3, 12, true) < limit);
        CHECK(skewness(trained.state("square#projector"), 9, 3, false) < limit);
      }
    }
  }
}

TEST_CASE("an expert without tokens stays, and others do as without it") {
  Trained all("rank: 3\n"), some("rank: 3\n");
  for (int t = 1; t <= 4; ++t) {
    all.rig.set_gradients(t, 1.0);
    some.rig.set_gradients(t, 1.0);
    Values g = some.gradient("experts");
    std::fill(g.begin() + 40, g.begin() + 80, 0.0);
    set_values(some.rig.store.find("experts").grad(), g);
    const Values before = values_of(some.rig.store.find("experts").master());
    all.step();
    some.step();
    const Values now = values_of(some.rig.store.find("experts").master()),
                 others = values_of(all.rig.store.find("experts").master());
    for (std::size_t i = 0; i < now.size(); ++i) {
      CHECK(now[i] == (i / 40 == 1 ? before[i] : others[i]));
    }
  }
}

TEST_CASE(
    "a gradient of one token leaves a subspace to be completed by axes, the same in every update") {
  for (const ParameterDTypes& dtypes : {kFp64, kFp32}) {
    Trained trained("rank: 4\n", dtypes);
    for (int t = 1; t <= 3; ++t) {
      trained.rig.set_gradients(t, 1.0);
      // One token's gradient: an outer product, in every update of the same directions.
      Values g(480);
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] = std::sin(1.0 + static_cast<double>(i / 12)) *
               std::cos(2.0 + static_cast<double>(i % 12));
      }
      set_values(trained.rig.store.find("tall").grad(), g);
      trained.step();
      const double limit = dtypes.master == DType::f64 ? 1e-14 : 1e-6;
      CHECK(skewness(trained.state("tall#projector"), 4, 12, true) < limit);
      // All of the gradient is in the first vector; the others are the same axes in every update.
      for (const double x : trained.state("tall#error")) CHECK(std::abs(x) < 100 * limit);
      const Values projector = trained.state("tall#projector");
      const double length = std::sqrt([&] {
        double squares = 0;
        for (std::size_t j = 0; j < 12; ++j)
          squares += std::pow(std::cos(2.0 + static_cast<double>(j)), 2);
        return squares;
      }());
      for (std::size_t j = 0; j < 12; ++j) {
        const double expected = std::cos(2.0 + static_cast<double>(j)) / length;
        CHECK(std::abs(std::abs(projector[j]) - std::abs(expected)) < 100 * limit);
      }
      CHECK(projector[12] > 0.5);
    }
  }
}

}  // namespace llmtrain::optim
