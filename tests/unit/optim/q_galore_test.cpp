// What Q-GaLore keeps of a matrix, where it lies, and when subspaces are chosen.
#include <doctest/doctest.h>

#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

using Values = std::vector<double>;

const std::vector<ParameterSpec> kMatrices{
    {.name = "tall", .shape = {40, 12}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "wide", .shape = {6, 9}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "experts", .shape = {3, 8, 5}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "table", .shape = {20, 30}, .role = ParameterRole::embedding, .init = {}},
    {.name = "bias", .shape = {7}, .role = ParameterRole::bias, .init = {}}};

std::vector<std::string> states_of(const ParameterDTypes& dtypes, const std::string& yaml) {
  const Rig rig(dtypes, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: q_galore\n" + yaml);
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::vector<std::string> found;
  for (const StateTensor& s : set.states()) {
    found.push_back(
        fmt::format("{} {} {}", s.name, to_string(s.tensor.dtype()), to_string(s.tensor.shape())));
  }
  return found;
}

Values state(const OptimizerSet& set, std::string_view name) {
  for (const StateTensor& s : set.states()) {
    if (s.name == name) return values_of(s.tensor);
  }
  FAIL("no state ", name);
  return {};
}

/// Of every matrix an outer product, which keeps its directions, with noise beside it.
void set_outer_products(const Rig& rig, int step, double noise) {
  rig.set_gradients(step, noise);
  for (const auto& p : rig.store.all()) {
    const Shape& shape = p->global_shape();
    if (p->role() != ParameterRole::matrix) continue;
    Values g = values_of(p->grad());
    for (std::size_t i = 0; i < g.size(); ++i) {
      const auto cols = static_cast<std::size_t>(shape[shape.rank() - 1]);
      g[i] +=
          std::sin(1 + static_cast<double>(i / cols)) * std::cos(2 + static_cast<double>(i % cols));
    }
    set_values(p->grad(), g);
  }
}

constexpr const char* kFollows =
    "name: q_galore\nrank: 3\nupdate_proj_gap: 1\nqueue_size: 2\nmin_8bit_size: 100\n";

}  // namespace

TEST_CASE("a group of projectors that are not quantized is refused, not ignored") {
  const auto refusal = [](const std::string& yaml) -> std::string {
    OptimizerOptions options;
    try {
      read_options(options, "name: q_galore\n" + yaml);
    } catch (const RecipeError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal("proj_bits: null\nproj_group_size: 64\n").find("optimizer.proj_bits is null") !=
        std::string::npos);
  CHECK(refusal("proj_bits: null\n").empty());
  CHECK(refusal("proj_group_size: 64\n").empty());
}

TEST_CASE("Q-GaLore keeps codes of a projector, how far it turned, and two moments of codes") {
  CHECK(states_of(kBf16, "rank: 8\nmin_8bit_size: 300\nproj_group_size: 32\n") ==
        std::vector<std::string>{"tall#projector uint8 [8, 12]",
                                 "tall#projector_scale fp32 [1, 3]",
                                 "tall#projector_zero uint8 [1, 3]",
                                 "tall#leading_vector fp32 [1, 12]",
                                 "tall#similarities fp64 [1, 5]",
                                 "tall#gap fp64 [1, 1]",
                                 "tall#m uint8 [40, 8]",
                                 "tall#m_scale fp32 [1, 2]",
                                 "tall#v uint8 [40, 8]",
                                 "tall#v_scale fp32 [1, 2]",
                                 "wide#projector uint8 [6, 6]",
                                 "wide#projector_scale fp32 [1, 2]",
                                 "wide#projector_zero uint8 [1, 2]",
                                 "wide#leading_vector fp32 [1, 6]",
                                 "wide#similarities fp64 [1, 5]",
                                 "wide#gap fp64 [1, 1]",
                                 "wide#m fp32 [6, 9]",
                                 "wide#v fp32 [6, 9]",
                                 "experts#projector uint8 [3, 5, 5]",
                                 "experts#projector_scale fp32 [3, 1, 1]",
                                 "experts#projector_zero uint8 [3, 1, 1]",
                                 "experts#leading_vector fp32 [3, 1, 5]",
                                 "experts#similarities fp64 [3, 1, 5]",
                                 "experts#gap fp64 [3, 1, 1]",
                                 "experts#m fp32 [3, 8, 5]",
                                 "experts#v fp32 [3, 8, 5]",
                                 "table#m uint8 [20, 30]",
                                 "table#m_scale fp32 [3]",
                                 "table#v uint8 [20, 30]",
                                 "table#v_scale fp32 [3]",
                                 "bias#m fp32 [7]",
                                 "bias#v fp32 [7]"});
  const auto whole = states_of(kFp64, "rank: 8\nproj_bits: null\nqueue_size: 3\n");
  CHECK(whole.front() == "tall#projector fp64 [8, 12]");
  CHECK(whole[1] == "tall#leading_vector fp64 [1, 12]");
  CHECK(whole[2] == "tall#similarities fp64 [1, 3]");
  CHECK(whole[4] == "tall#m fp64 [40, 8]");
}

TEST_CASE("a state of 8 bits is one of as many elements as the subspace has, each expert's alone") {
  // [40, 8] has 320, [8, 5] of each of three experts 40.
  for (const auto& [size, tall, experts] :
       {std::tuple{320, "uint8", "fp32"}, std::tuple{321, "fp32", "fp32"},
        std::tuple{40, "uint8", "uint8"}}) {
    const auto found = states_of(kFp32, fmt::format("rank: 8\nmin_8bit_size: {}\n", size));
    const auto has = [&](const std::string& text) {
      return std::find(found.begin(), found.end(), text) != found.end();
    };
    CHECK(has(fmt::format("tall#m {} [40, 8]", tall)));
    CHECK(has(fmt::format("experts#v {} [3, 8, 5]", experts)));
  }
}

TEST_CASE("bytes of Q-GaLore's states are those of its codes, scales and vectors") {
  const Rig rig(kBf16, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: q_galore\nrank: 8\nmin_8bit_size: 300\nproj_group_size: 32\n");
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  const auto bytes = [&](const char* name, std::int64_t elements) {
    return set.state_bytes(rig.store.find(name), elements);
  };
  constexpr std::uint64_t kFollowed = 8 * (5 + 1);
  CHECK(bytes("tall", 480).kept ==
        8 * 12 + 3 * (4 + 1) + 4 * 12 + kFollowed + 2 * (40 * 8 + 2 * 4));
  CHECK(bytes("wide", 54).written == 6 * 6 + 2 * (4 + 1) + 4 * 6 + kFollowed + 2 * 4 * 6 * 9);
  CHECK(bytes("experts", 80).kept == 2 * (5 * 5 + (4 + 1) + 4 * 5 + kFollowed + 2 * 4 * 8 * 5));
  CHECK(bytes("table", 600).kept == 2 * (600 + 3 * 4));
}

TEST_CASE("ranks that have parts of a matrix keep all that follows its subspace") {
  for (const int dim : {0, 1}) {
    for (const int rank : {0, 1}) {
      const Mesh mesh({.sizes = {1, 2, 1, 1}}, rank, meta_factory(nullptr));
      ParameterStore store(mesh);
      ParameterSpec spec{.name = "w", .shape = {40, 12}, .init = {}};
      spec.placement[Axis::tp].split_dim = dim;
      store.declare(spec);
      OptimizerOptions options;
      read_options(options, "name: q_galore\nrank: 4\nmin_8bit_size: 0\n");
      const auto optimizer = options.name().make(options.name);
      store.slice([&](const Parameter& p) { return optimizer->indivisible(p); });
      const Parameter& w = store.find("w");
      for (const StateSpec& s : optimizer->states(w)) {
        CAPTURE(s.name);
        const TensorPlace place = place_of(s, w);
        CHECK(place.global_shape == s.matrix);
        CHECK(place.box.shape == s.matrix);
        CHECK(place.own.count == s.matrix.numel());
        CHECK(begins_blocks(s, w) == (rank == 0));
      }
    }
  }
}

TEST_CASE("ZeRO leaves matrices whole and blocks of all else") {
  const Rig rig(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: q_galore\nmin_8bit_size: 100\n");
  const auto optimizer = options.name().make(options.name);
  CHECK(optimizer->indivisible(rig.store.find("tall")) == 0);
  CHECK(optimizer->indivisible(rig.store.find("table")) == 256);
  CHECK(optimizer->indivisible(rig.store.find("bias")) == 1);
}

TEST_CASE("what keeps its directions is projected anew less and less often") {
  const Rig rig(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, std::string(kFollows) + "cos_threshold: 0.9\n");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  Values gaps, last;
  std::vector<int> chosen;
  for (int t = 1; t <= 17; ++t) {
    set_outer_products(rig, t, 0.01);
    run_step(rig, set, 1.0);
    gaps.push_back(state(set, "tall#gap")[0]);
    const Values now = state(set, "tall#leading_vector");
    if (now != last) chosen.push_back(t);
    last = now;
  }
  // Similarities of updates 2 and 3 are the first two; each choice from there on doubles the gap.
  CHECK(chosen == std::vector<int>{1, 2, 3, 5, 9, 17});
  CHECK(gaps == Values{1, 1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16});
  for (const double similarity : state(set, "tall#similarities")) CHECK(similarity > 0.9);
}

TEST_CASE("what turns is projected anew in every update") {
  const Rig rig(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, std::string(kFollows) + "cos_threshold: 0.9\n");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  Values last;
  for (int t = 1; t <= 8; ++t) {
    rig.set_gradients(t, 1.0);
    run_step(rig, set, 1.0);
    const Values now = state(set, "tall#leading_vector");
    CHECK(now != last);
    last = now;
  }
  CHECK(state(set, "tall#gap") == Values{1});
}

TEST_CASE("each expert's subspace is followed by itself") {
  const Rig rig(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, std::string(kFollows) + "cos_threshold: 0.9\n");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  for (int t = 1; t <= 5; ++t) {
    rig.set_gradients(t, 1.0);
    const Tensor grad = rig.store.find("experts").grad();
    const Values noise = values_of(grad);
    set_outer_products(rig, 1, 0.01);
    Values g = values_of(grad);
    std::copy(noise.begin(), noise.begin() + 40, g.begin());  // the first one turns
    set_values(grad, g);
    run_step(rig, set, 1.0);
  }
  CHECK(state(set, "experts#gap") == Values{1, 4, 4});
}

TEST_CASE("a step that does not apply chooses no subspace and counts for no gap of Q-GaLore") {
  const Rig with(kFp32, kMatrices), without(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, std::string(kFollows) + "lr: 0.1\n");
  OptimizerSet one(with.ctx, options, with.store, with.mesh),
      two(without.ctx, options, without.store, without.mesh);
  for (int t = 1; t <= 6; ++t) {
    const auto before = with.contents(one);
    set_outer_products(with, 100 + t, 1.0);
    set_values(with.store.find("bias").grad(), Values(7, INFINITY));
    CHECK(!run_step(with, one, 1.0).applied);
    CHECK(with.contents(one) == before);
    set_outer_products(with, t, 0.5);
    set_outer_products(without, t, 0.5);
    run_step(with, one, 1.0);
    run_step(without, two, 1.0);
    CHECK(with.contents(one) == without.contents(two));
  }
}

TEST_CASE("Q-GaLore resumed after any update has the bits of a run that never stopped") {
  OptimizerOptions options;
  read_options(options, std::string(kFollows) + "cos_threshold: 0.5\n");
  constexpr int kUpdates = 10;
  const auto run = [&](const Rig& rig, OptimizerSet& set, int first, int last) {
    for (int t = first; t <= last; ++t) {
      set_outer_products(rig, t, 0.3);
      run_step(rig, set, 1.0);
    }
  };
  const Rig straight(kBf16Remainder, kMatrices);
  OptimizerSet whole(straight.ctx, options, straight.store, straight.mesh);
  run(straight, whole, 1, kUpdates);
  CHECK(state(whole, "tall#gap")[0] > 1);
  for (int stop = 1; stop < kUpdates; ++stop) {
    CAPTURE(stop);
    const Rig one(kBf16Remainder, kMatrices);
    Rig two(kBf16Remainder, kMatrices);
    OptimizerSet first(one.ctx, options, one.store, one.mesh),
        rest(two.ctx, options, two.store, two.mesh);
    run(one, first, 1, stop);
    for (const auto& p : two.store.all()) {
      two.store.write(*p, one.store.read(one.store.find(p->name())));
    }
    for (std::size_t i = 0; i < rest.states().size(); ++i) {
      two.device.copy_from_host(rest.states()[i].tensor, bytes_of(first.states()[i].tensor));
    }
    rest.set_progress(first.progress());
    run(two, rest, stop + 1, kUpdates);
    CHECK(two.contents(rest) == straight.contents(whole));
  }
}

}  // namespace llmtrain::optim
