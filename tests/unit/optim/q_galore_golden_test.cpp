// Twenty steps of Q-GaLore's authors, by scripts/golden/quantized_projected_optimizers.py.
#include <bit>
#include <cstring>
#include <fstream>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/golden.hpp"

namespace llmtrain::optim {

namespace {

using golden::Json;
using golden::Values;

/// Noise, in matrices beside one of rank one that is the same in every step.
Values gradient_of(const Json& golden, const Parameter& p, std::size_t t) {
  const std::string name(p.name());
  const Shape& shape = p.global_shape();
  const double scale = golden["gradient_scales"][t % golden["gradient_scales"].size()];
  const auto noise =
      test::formula_weights(fmt::format("{} gradient {}", name, t), shape.numel(), 0, 1);
  Values g(noise.begin(), noise.end());
  if (shape.rank() == 2) {
    const double drift = golden["drift"][name];
    const auto rows = test::formula_weights(name + " rows", shape[0], 0, 1),
               columns = test::formula_weights(name + " columns", shape[1], 0, 1);
    for (std::size_t i = 0; i < g.size(); ++i) {
      const std::size_t row = i / columns.size(), column = i % columns.size();
      g[i] += drift * static_cast<double>(rows[row]) * static_cast<double>(columns[column]);
    }
  }
  for (double& x : g) x *= scale;
  return g;
}

std::size_t stride_of(const Json& golden, const StateTensor& state) {
  const bool is_whole = state.name.ends_with("similarities") || state.name.ends_with("vector");
  return is_whole ? 1 : golden["state_strides"][std::string(state.parameter->name())].get<int>();
}

/// Every so-many-th code, or scale.
std::vector<std::uint32_t> bits_of(const StateTensor& state, std::size_t stride) {
  const std::vector<std::byte> bytes = bytes_of(state.tensor);
  const std::size_t size = size_of(state.tensor.dtype());
  std::vector<std::uint32_t> bits;
  for (std::size_t at = 0; at < bytes.size(); at += stride * size) {
    std::memcpy(&bits.emplace_back(), &bytes[at], size);
  }
  return bits;
}

/// Codes and the bits of their scales, of all steps and some of the last.
void check_coded(const StateTensor& state, std::uint64_t hash, const Json& expected,
                 std::size_t stride) {
  CHECK(bits_of(state, stride) == expected["bits"].get<std::vector<std::uint32_t>>());
  CHECK(std::to_string(hash) == expected["hash"].get<std::string>());
}

void check_states(const Json& golden, const Json& expected, const OptimizerSet& set,
                  const std::map<std::string, std::uint64_t>& hashes, double tolerance) {
  REQUIRE(set.states().size() == expected.size());
  for (const StateTensor& state : set.states()) {
    CAPTURE(state.name);
    const std::size_t stride = stride_of(golden, state);
    const Json& kept = expected[state.name];
    if (kept.contains("hash")) {
      check_coded(state, hashes.at(state.name), kept, stride);
    } else {
      golden::check_kept(values_of(state.tensor), kept, stride, tolerance);
    }
  }
}

/// FP32 beside the authors' FP64: where rounding makes a neighbour of a code out of it, in one of a
/// hundred codes at most, all else is as near as FP32 is.
void check_states_nearly(const Json& golden, const Json& exact, const OptimizerSet& set,
                         double tolerance) {
  REQUIRE(set.states().size() == exact.size());
  std::size_t codes = 0, neighbours = 0;
  for (const StateTensor& state : set.states()) {
    CAPTURE(state.name);
    const std::size_t stride = stride_of(golden, state);
    const Json& kept = exact[state.name];
    if (!kept.contains("bits")) {
      golden::check_kept(values_of(state.tensor), kept, stride, tolerance);
      continue;
    }
    const std::vector<std::uint32_t> found = bits_of(state, stride), wanted = kept["bits"];
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (state.tensor.dtype() == DType::f32) {
        CHECK(std::bit_cast<float>(found[i]) ==
              test::relative(std::bit_cast<float>(wanted[i]), tolerance));
        continue;
      }
      ++codes;
      neighbours += found[i] != wanted[i];
      CHECK(std::max(found[i], wanted[i]) - std::min(found[i], wanted[i]) <= 1);
    }
  }
  CHECK(codes > 80);
  CHECK(100 * neighbours <= codes);
}

/// How often a matrix's gap grew.
int growths(const Json& expected, const Json& options, const std::string& name) {
  const double first = options.value("update_proj_gap", 200.0),
               growth = options.value("gamma_proj", 2.0);
  int count = 0;
  for (double gap = first; gap < expected[name + "#gap"]["norm"].get<double>(); ++count) {
    gap = std::floor(gap * growth);
  }
  return count;
}

void compare(const Json& golden, const Json& c, const char* precision,
             const ParameterDTypes& dtypes, double tolerance) {
  CAPTURE(precision);
  const Json& expected = c[precision];
  const Rig rig(dtypes, golden::specs(golden));
  std::map<std::string, Values> first;
  for (const auto& p : rig.store.all()) {
    const auto values = test::formula_weights(p->name(), p->global_shape().numel(), 0, 1);
    first[p->name()].assign(values.begin(), values.end());
    set_values(p->master(), first[p->name()]);
  }
  OptimizerOptions options;
  read_options(options, golden::recipe_of(golden, c));
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::map<std::string, std::uint64_t> hashes;
  for (std::size_t t = 0; t < golden["lr_factors"].size(); ++t) {
    for (const auto& p : rig.store.all()) set_values(p->grad(), gradient_of(golden, *p, t));
    const StepResult result = run_step(rig, set, golden["lr_factors"][t].get<double>());
    REQUIRE(result.applied);
    CHECK(result.grad_norm == test::relative(expected["norms"][t].get<double>(), tolerance));
    for (const StateTensor& state : set.states()) {
      golden::add_to(hashes.try_emplace(state.name, golden::kHashOfNothing).first->second,
                     bytes_of(state.tensor));
    }
  }
  for (const auto& p : rig.store.all()) {
    CAPTURE(p->name());
    const std::string name(p->name());
    golden::check_kept(values_of(p->master()), expected["parameters"][name],
                       golden["strides"][name], tolerance, first[name]);
  }
  if (expected["states"].empty()) {
    check_states_nearly(golden, c["fp64"]["states"], set, tolerance);
  } else {
    check_states(golden, expected["states"], set, hashes, tolerance);
  }
}

}  // namespace

TEST_CASE("Q-GaLore agrees with its authors' code over twenty steps, codes and scales to the bit") {
  std::ifstream file(test_file("unit/optim/q_galore_golden.json"));
  const Json golden = Json::parse(file);
  int grown = 0;
  for (const Json& c : golden["cases"]) {
    CAPTURE(c["options"].dump());
    compare(golden, c, "fp64", kFp64, 1e-12);
    compare(golden, c, "fp32", kFp32, c["fp32_tolerance"]);
    for (const char* name : {"b", "c", "d"}) {
      grown += growths(c["fp64"]["states"], c["options"], name);
    }
  }
  CHECK(grown > 20);
}

}  // namespace llmtrain::optim
