// Optimizers with states of 8 bits: twenty steps of bitsandbytes' own, made by
// scripts/golden/eight_bit_optimizers.py; which parameters have such states, and what ranks have of
// their blocks.
#include "lib/optim/eight_bit.hpp"

#include <cmath>
#include <fstream>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/formula.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/golden.hpp"

namespace llmtrain::optim {

namespace {

using golden::add_to;
using golden::Json;
using golden::kHashOfNothing;
using golden::Values;

Values gradient_of(const Json& golden, const Parameter& p, std::size_t t, bool coarse) {
  const std::string name(p.name());
  const double scale = golden["gradient_scales"][t % golden["gradient_scales"].size()];
  const double steps = golden["gradient_steps"];
  const auto values =
      test::formula_weights(fmt::format("{} gradient {}", name, t), p.global_shape().numel(), 0, 1);
  const Json& huge_steps = golden["huge_steps"];
  const bool huge = t % huge_steps[0].get<std::size_t>() == huge_steps[1].get<std::size_t>();
  Values g(values.begin(), values.end());
  for (std::size_t i = 0; i < g.size(); ++i) {
    if (coarse) g[i] = std::floor(g[i] * steps) / steps;
    g[i] *= scale;
    const std::int32_t kind = test::formula_below(name + " kind", golden["special"], i);
    if (kind == 0) g[i] = 0;
    if (kind == 1) g[i] = golden["tiny"];
    if (kind == 2 && huge) g[i] = golden["huge"];
  }
  return g;
}

std::vector<ParameterSpec> specs(const Json& golden) {
  std::vector<ParameterSpec> all;
  for (const auto& [name, shape] : golden["shapes"].items()) {
    Shape dims;
    if (shape.size() == 1) dims = {shape[0].get<std::int64_t>()};
    if (shape.size() == 2) dims = {shape[0].get<std::int64_t>(), shape[1].get<std::int64_t>()};
    all.push_back({.name = name, .shape = dims, .init = {}});
  }
  return all;
}

std::string recipe_of(const Json& golden, const Json& c) {
  Json recipe = c["options"];
  recipe["name"] = c["name"];
  recipe["lr"] = golden["lr"];
  recipe["max_grad_norm"] = nullptr;
  recipe["min_8bit_size"] = 0;
  recipe["no_decay"] = Json::array();
  for (const auto& [name, settings] : golden["groups"].items()) {
    Json group = settings;
    group["match"] = name;
    recipe["groups"].push_back(group);
  }
  return recipe.dump();
}

/// Codes and scales to the bit over all steps; `hashes` are of them.
void check_state(const StateTensor& state, std::uint64_t hash, const Json& expected, int stride) {
  CAPTURE(state.name);
  const std::vector<std::byte> bytes = bytes_of(state.tensor);
  if (expected.contains("sample")) {
    for (std::size_t i = 0; i < expected["sample"].size(); ++i) {
      CHECK(std::to_integer<int>(bytes[i * static_cast<std::size_t>(stride)]) ==
            expected["sample"][i].get<int>());
    }
  } else {
    for (std::size_t i = 0; i < expected["bits"].size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &bytes[4 * i], 4);
      CHECK(bits == expected["bits"][i].get<std::uint32_t>());
    }
  }
  CHECK(std::to_string(hash) == expected["hash"].get<std::string>());
}

void compare(const Json& golden, const Json& c) {
  const Rig rig(kFp32, specs(golden));
  for (const auto& p : rig.store.all()) {
    const auto values = test::formula_weights(p->name(), p->global_shape().numel(), 0, 1);
    set_values(p->master(), Values(values.begin(), values.end()));
  }
  OptimizerOptions options;
  read_options(options, recipe_of(golden, c));
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::map<std::string, std::uint64_t> hashes;
  for (std::size_t t = 0; t < golden["lr_factors"].size(); ++t) {
    for (const auto& p : rig.store.all()) {
      set_values(p->grad(), gradient_of(golden, *p, t, c["kind"] == "package"));
    }
    REQUIRE(run_step(rig, set, golden["lr_factors"][t].get<double>()).applied);
    for (const StateTensor& state : set.states()) {
      add_to(hashes.try_emplace(state.name, kHashOfNothing).first->second, bytes_of(state.tensor));
    }
  }
  CHECK(set.states().size() == c["states"].size());
  for (const StateTensor& state : set.states()) {
    check_state(state, hashes[state.name], c["states"][state.name],
                golden["strides"][std::string(state.parameter->name())]);
  }
  for (const auto& p : rig.store.all()) {
    CAPTURE(p->name());
    const Values found = values_of(p->master());
    const Json& sample = c["parameters"][std::string(p->name())];
    const std::size_t stride = golden["strides"][std::string(p->name())];
    for (std::size_t i = 0; i < sample.size(); ++i) {
      // Each of the steps may round otherwise; values begin within [-1, 1].
      const double x = sample[i];
      CHECK(std::abs(found[i * stride] - x) <= 8 * 0x1p-24 * std::max(1.0, std::abs(x)));
    }
  }
}

/// Which states a parameter of this shape and placement has on a rank of a mesh, or the refusal.
struct Held {
  explicit Held(const Shape& shape, const MeshShape& mesh_shape, int rank, int split_dim,
                bool of_experts = false)
      : mesh(mesh_shape, rank, meta_factory(nullptr)), store(mesh) {
    ParameterSpec spec{.name = "w", .shape = shape, .init = {}};
    spec.placement[Axis::tp].split_dim = split_dim;
    spec.placement.of_experts = of_experts;
    store.declare(spec);
    read_options(options, "name: adamw_8bit\n");
    optimizer = options.name().make(options.name);
    const auto piece = [&](const Parameter& p) { return optimizer->indivisible(p); };
    store.slice(piece);
  }
  const Parameter& parameter() const { return store.find("w"); }
  TensorPlace scales() const { return place_of(optimizer->states(parameter()).at(1), parameter()); }
  std::string refusal() const {
    try {
      optimizer->states(parameter());
    } catch (const RecipeError& e) {
      return e.what();
    }
    return "";
  }

  Mesh mesh;
  ParameterStore store;
  OptimizerOptions options;
  std::unique_ptr<Optimizer> optimizer;
};

constexpr int kNone = -1;

MeshShape tp(int ranks) { return {.sizes = {1, ranks, 1, 1}}; }

}  // namespace

TEST_CASE("8-bit AdamW and Lion have the codes and scales of bitsandbytes over twenty steps") {
  std::ifstream file(test_file("unit/optim/eight_bit_golden.json"));
  const Json golden = Json::parse(file);
  for (const Json& c : golden["cases"]) {
    CAPTURE(c["kind"]);
    CAPTURE(c["name"]);
    compare(golden, c);
  }
  const kernels::DynamicMap* const maps[] = {&kernels::kSignedDynamicMap,
                                             &kernels::kUnsignedDynamicMap};
  for (const bool is_signed : {true, false}) {
    std::uint64_t hash = kHashOfNothing;
    add_to(hash, std::as_bytes(std::span(maps[is_signed ? 0 : 1]->values)));
    CHECK(std::to_string(hash) ==
          golden["maps"][is_signed ? "signed" : "unsigned"]["hash"].get<std::string>());
  }
}

TEST_CASE("parameters of fewer elements than min_8bit_size keep whole states") {
  const std::vector<ParameterSpec> both{
      {.name = "small", .shape = {4095}, .role = ParameterRole::norm, .init = {}},
      {.name = "large", .shape = {16, 256}, .init = {}},
      {.name = "cut", .shape = {4099}, .init = {}}};
  const Rig rig(kBf16, both);
  OptimizerOptions options;
  read_options(options, "name: adamw_8bit\n");
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::vector<std::string> found;
  for (const StateTensor& s : set.states()) {
    found.push_back(
        fmt::format("{} {} {}", s.name, to_string(s.tensor.dtype()), to_string(s.tensor.shape())));
    for (const double x : values_of(s.tensor)) CHECK(x == 0);
  }
  CHECK(found == std::vector<std::string>{"small#m fp32 [4095]", "small#v fp32 [4095]",
                                          "large#m uint8 [16, 256]", "large#m_scale fp32 [16, 1]",
                                          "large#v uint8 [16, 256]", "large#v_scale fp32 [16, 1]",
                                          "cut#m uint8 [4099]", "cut#m_scale fp32 [17]",
                                          "cut#v uint8 [4099]", "cut#v_scale fp32 [17]"});
  CHECK(set.state_bytes(rig.store.find("large"), 4096).kept == 2 * (4096 + 16 * 4));
  CHECK(set.state_bytes(rig.store.find("cut"), 4099).written == 2 * (4099 + 17 * 4));
  CHECK(set.state_bytes(rig.store.find("small"), 4095).kept == 8 * 4095);

  OptimizerOptions of_lion;
  read_options(of_lion, "name: lion_8bit\nmin_8bit_size: 5000\n");
  const OptimizerSet lion(rig.ctx, of_lion, rig.store, rig.mesh);
  for (const StateTensor& s : lion.states()) CHECK(s.tensor.dtype() == DType::f32);
  CHECK(lion.states().size() == 3);
}

TEST_CASE("scales lie where the blocks of the whole tensor do") {
  // Rows of whole blocks, of which ranks have columns; rows that are no blocks, and experts.
  const Held columns({6, 1024}, tp(2), 1, 1);
  CHECK(columns.scales().global_shape == Shape{6, 4});
  CHECK(columns.scales().box.offset[1] == 2);
  CHECK(columns.scales().box.shape == Shape{6, 2});
  const Held rows({192, 40}, tp(2), 1, 0);
  CHECK(rows.scales().global_shape == Shape{30});
  CHECK(rows.scales().box.offset[0] == 15);
  CHECK(rows.scales().box.shape == Shape{15});
  const Held last({129, 32}, {.sizes = {2, 1, 1, 1}, .ep = 1}, 1, kNone);
  CHECK(last.scales().global_shape == Shape{17});
  CHECK(last.scales().own.first + last.scales().own.count == 17);
  CHECK(last.parameter().own_slice().first % 1024 == 0);
  const Held experts({8, 24, 32}, {.sizes = {2, 1, 1, 1}, .ep = 2}, 1, kNone, true);
  CHECK(experts.scales().global_shape == Shape{24});
  CHECK(experts.scales().box.offset[0] == 12);
  const Held both({4, 64, 512}, {.sizes = {2, 2, 1, 1}, .ep = 2}, 3, 2, true);
  CHECK(both.scales().global_shape == Shape{4, 64, 2});
  CHECK(both.scales().box.shape == Shape{2, 64, 1});
}

TEST_CASE("a placement that cuts blocks is refused, with the nearest that does not") {
  const auto says = [](const Held& held, std::string_view text) {
    CAPTURE(held.refusal());
    return held.refusal().find(text) != std::string::npos;
  };
  CHECK(Held({64, 1024}, tp(4), 1, 1).refusal().empty());
  CHECK(says(Held({64, 1024}, tp(8), 0, 1), "cuts blocks of 256 elements"));
  CHECK(says(Held({64, 1024}, tp(8), 0, 1), "parallelism.tp = 4 does not"));
  CHECK(says(Held({96, 96}, tp(4), 3, 1), "parallelism.tp = 1 does not"));
  // 24 rows of 96 are 9 blocks; 12 are not.
  CHECK(Held({96, 96}, tp(4), 2, 0).refusal().empty());
  CHECK(says(Held({96, 96}, tp(8), 2, 0), "parallelism.tp = 6 or 12 does not"));
  CHECK(says(Held({96, 96}, tp(8), 2, 0), "optimizer.min_8bit_size = 9217"));
  CHECK(says(Held({8, 24, 28}, {.sizes = {8, 1, 1, 1}, .ep = 8}, 1, kNone, true),
             "parallelism.ep = 1 does not"));
  // Too small for 8 bits: nothing to cut.
  CHECK(Held({32, 64}, tp(4), 1, 1).refusal().empty());
}

}  // namespace llmtrain::optim
