// States with shapes of their own, of optimizers that work in subspaces of matrices.
#include <doctest/doctest.h>

#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

/// A matrix on a rank of a mesh, and where GaLore's states of it lie.
struct Held {
  Held(const Shape& shape, const MeshShape& mesh_shape, int rank, int split_dim,
       bool of_experts = false)
      : mesh(mesh_shape, rank, meta_factory(nullptr)), store(mesh) {
    ParameterSpec spec{.name = "w", .shape = shape, .init = {}};
    spec.placement[Axis::tp].split_dim = split_dim;
    spec.placement.of_experts = of_experts;
    store.declare(spec);
    read_options(options, "name: galore\nrank: 4\n");
    optimizer = options.name().make(options.name);
    store.slice([&](const Parameter& p) { return optimizer->indivisible(p); });
  }
  const Parameter& parameter() const { return store.find("w"); }
  StateSpec state(std::size_t i) const { return optimizer->states(parameter()).at(i); }
  TensorPlace place(std::size_t i) const { return place_of(state(i), parameter()); }
  bool is_whole(std::size_t i, const Shape& shape) const {
    const TensorPlace at = place(i);
    return at.global_shape == shape && at.box.shape == shape && at.own.first == 0 &&
           at.own.count == shape.numel();
  }

  Mesh mesh;
  ParameterStore store;
  OptimizerOptions options;
  std::unique_ptr<Optimizer> optimizer;
};

constexpr int kNone = -1;

MeshShape tp(int ranks) { return {.sizes = {1, ranks, 1, 1}}; }

const std::vector<ParameterSpec> kMatrices{
    {.name = "tall", .shape = {40, 12}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "wide", .shape = {6, 9}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "experts", .shape = {3, 8, 5}, .init = {Initializer::Kind::normal, 1.0}},
    {.name = "bias", .shape = {7}, .role = ParameterRole::bias, .init = {}}};

}  // namespace

TEST_CASE("GaLore keeps a projector and two moments in the subspace of each matrix") {
  const Rig rig(kBf16, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: galore\nrank: 8\n");
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::vector<std::string> found;
  for (const StateTensor& s : set.states()) {
    CHECK(s.tensor.dtype() == DType::f32);
    found.push_back(fmt::format("{} {}", s.name, to_string(s.tensor.shape())));
  }
  CHECK(found == std::vector<std::string>{"tall#projector [8, 12]", "tall#m [40, 8]",
                                          "tall#v [40, 8]", "wide#projector [6, 6]",
                                          "wide#m [6, 9]", "wide#v [6, 9]",
                                          "experts#projector [3, 5, 5]", "experts#m [3, 8, 5]",
                                          "experts#v [3, 8, 5]", "bias#m [7]", "bias#v [7]"});
  const auto bytes = [&](const char* name, std::int64_t elements) {
    return set.state_bytes(rig.store.find(name), elements);
  };
  CHECK(bytes("tall", 480).kept == 4 * (8 * 12 + 2 * 40 * 8));
  CHECK(bytes("wide", 54).written == 4 * (6 * 6 + 2 * 6 * 9));
  CHECK(bytes("experts", 80).kept == 4 * 2 * (5 * 5 + 2 * 8 * 5));
  CHECK(bytes("bias", 7).kept == 4 * 2 * 7);
}

TEST_CASE("ranks that have parts of a matrix keep all of its subspace, and the first writes it") {
  for (const int dim : {0, 1}) {
    for (const int rank : {0, 1}) {
      const Held tall({40, 12}, tp(2), rank, dim), wide({12, 40}, tp(2), rank, dim);
      CHECK(tall.is_whole(0, {4, 12}));
      CHECK(tall.is_whole(1, {40, 4}));
      CHECK(wide.is_whole(0, {12, 4}));
      CHECK(wide.is_whole(2, {4, 40}));
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(begins_blocks(tall.state(i), tall.parameter()) == (rank == 0));
        CHECK(begins_blocks(wide.state(i), wide.parameter()) == (rank == 0));
      }
    }
  }
}

TEST_CASE("subspaces of experts lie where the experts do, and have one owner") {
  const Held experts({8, 24, 32}, {.sizes = {2, 2, 1, 1}, .ep = 2}, 3, 2, true);
  const TensorPlace m = experts.place(1);
  CHECK(m.global_shape == Shape{8, 4, 32});
  CHECK(m.box.shape == Shape{4, 4, 32});
  CHECK(m.box.offset[0] == 4);
  CHECK(m.box.offset[1] == 0);
  CHECK(m.box.offset[2] == 0);
  CHECK(m.own.count == 4 * 4 * 32);
  CHECK(!begins_blocks(experts.state(1), experts.parameter()));
  int owners = 0;
  for (const int rank : {0, 1}) {
    const Held held({4, 6, 8}, {.sizes = {2, 1, 1, 1}}, rank, kNone);
    const TensorPlace place = held.place(0);
    owners += place.own.count > 0;
    CHECK((place.own.count == 0 || place.own.count == place.box.shape.numel()));
  }
  CHECK(owners == 1);
}

TEST_CASE("a step that does not apply chooses no subspace and counts for no gap") {
  const Rig with(kFp32, kMatrices), without(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: galore\nrank: 3\nupdate_proj_gap: 2\nlr: 0.1\n");
  OptimizerSet one(with.ctx, options, with.store, with.mesh),
      two(without.ctx, options, without.store, without.mesh);
  for (int t = 1; t <= 5; ++t) {
    const auto before = with.contents(one);
    with.set_gradients(100 + t, 1.0);
    set_values(with.store.find("bias").grad(), std::vector<double>(7, INFINITY));
    CHECK(!run_step(with, one, 1.0).applied);
    CHECK(with.contents(one) == before);
    with.set_gradients(t, 1.0);
    without.set_gradients(t, 1.0);
    run_step(with, one, 1.0);
    run_step(without, two, 1.0);
    CHECK(with.contents(one) == without.contents(two));
  }
}

TEST_CASE("a projector stays for a gap of updates, while its moments go on") {
  const Rig rig(kFp32, kMatrices);
  OptimizerOptions options;
  read_options(options, "name: galore\nrank: 3\nupdate_proj_gap: 3\n");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  std::vector<std::byte> last;
  for (int t = 1; t <= 9; ++t) {
    const auto moments = bytes_of(set.states()[1].tensor);
    rig.set_gradients(t, 1.0);
    run_step(rig, set, 1.0);
    const auto now = bytes_of(set.states()[0].tensor);
    CHECK((now != last) == (t % 3 == 1));
    CHECK(bytes_of(set.states()[1].tensor) != moments);
    last = now;
  }
}

}  // namespace llmtrain::optim
