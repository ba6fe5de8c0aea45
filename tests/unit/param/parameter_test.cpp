#include "lib/param/parameter.hpp"

#include <cmath>
#include <cstring>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"
#include "lib/tensor/split_master.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain {

namespace {
ParameterSpec matrix(std::string name, Shape shape, Placement placement = {}) {
  return {.name = std::move(name),
          .shape = shape,
          .role = ParameterRole::matrix,
          .init = {Initializer::Kind::normal, 0.5},
          .placement = placement};
}

std::vector<float> values_of(const ParameterStore& store, const Parameter& p) {
  const auto bytes = store.read(p);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
}  // namespace

TEST_CASE("first values are normal with the asked deviation and differ by name and seed") {
  Device cpu(make_cpu_memory(), 1 << 24);
  const Mesh mesh({}, 0, self_factory());
  ParameterStore store(mesh);
  store.declare(matrix("a", {100, 100}));
  store.declare(matrix("b", {100, 100}));
  store.allocate(cpu, {}, true);
  store.initialize(1);

  const auto a = values_of(store, store.find("a"));
  double sum = 0;
  double squares = 0;
  for (const float v : a) {
    sum += v;
    squares += double{v} * v;
  }
  CHECK(std::abs(sum / 1e4) < 0.02);
  CHECK(std::sqrt(squares / 1e4) == test::relative(0.5, 0.02));
  CHECK(a != values_of(store, store.find("b")));
  store.initialize(2);
  CHECK(a != values_of(store, store.find("a")));
}

TEST_CASE("first values are those of their index, however many threads make them") {
  const Shape shape{3, 100'001};  // several parts of a thread, and a chunk that is not full
  const Initializer init = matrix("w", shape).init;
  const PhiloxKey key = philox_key(7, "init", "w");
  for (const int threads : {1, 2, 5}) {
    Device cpu(make_cpu_memory(), 1 << 24);
    const Mesh mesh({}, 0, self_factory());
    ParameterStore store(mesh);
    store.declare(matrix("w", shape));
    store.allocate(cpu, {}, false);
    store.initialize(7, threads);
    const auto values = values_of(store, store.find("w"));
    std::int64_t different = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double normal = normal_quantile(unit_interval(philox_word(key, 0, i)));
      different += values[i] != static_cast<float>(init.std * normal);
    }
    CHECK(different == 0);
  }
}

TEST_CASE("a split parameter starts with its part of the whole") {
  constexpr std::int64_t kCols = 200'002;  // parts are longer than what is written at a time
  const MeshShape shape{.sizes = {1, 2, 1, 1}};
  for (const int split : {0, 1}) {
    Placement placement;
    placement[Axis::tp].split_dim = split;
    Device cpu(make_cpu_memory(), 1 << 24);
    const Mesh whole_mesh({}, 0, self_factory());
    ParameterStore whole(whole_mesh);
    whole.declare(matrix("w", {6, kCols}));
    whole.allocate(cpu, {}, false);
    whole.initialize(3);
    const auto expected = values_of(whole, whole.find("w"));

    for (int rank = 0; rank < 2; ++rank) {
      const Mesh mesh(shape, rank, meta_factory(nullptr));
      ParameterStore part(mesh);
      part.declare(matrix("w", {6, kCols}, placement));
      part.allocate(cpu, {.compute = DType::bf16}, false);
      part.initialize(3, 3);
      const Parameter& w = part.find("w");
      const auto got = values_of(part, w);
      const std::int64_t cols = w.box().shape[1];
      std::int64_t different = 0;
      for (std::int64_t i = 0; i < w.box().shape[0]; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) {
          const auto from = (i + w.box().offset[0]) * kCols + j + w.box().offset[1];
          const float value = expected[static_cast<std::size_t>(from)];
          different += got[static_cast<std::size_t>(i * cols + j)] != value;
          different += w.compute().view().row<bf16>(i)[j] != split_master(value).copy;
        }
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("members of a group lie one after another in one buffer") {
  Device cpu(make_cpu_memory(), 1 << 24);
  const Mesh mesh({}, 0, self_factory());
  ParameterStore store(mesh);
  std::vector<ParameterSpec> specs;
  specs.push_back(matrix("q", {4, 3}));
  specs.push_back(matrix("k", {2, 3}));
  const ParameterGroup& group = store.declare(std::move(specs));
  store.allocate(cpu, {.compute = DType::bf16}, true);

  CHECK(group.compute().shape() == Shape{6, 3});
  CHECK(store.find("k").compute().view().data == group.compute().view().row<bf16>(4));
  CHECK(store.find("k").master().dtype() == DType::f32);
  CHECK_THROWS_AS(store.declare(matrix("q", {1, 1})), InternalError);
}

TEST_CASE("an fp16 compute copy is the master rounded to nearest, ties to even") {
  Device cpu(make_cpu_memory(), 1 << 24);
  const Mesh mesh({}, 0, self_factory());
  ParameterStore store(mesh);
  store.declare(matrix("w", {2, 3}));
  const Parameter& p = store.find("w");
  store.allocate(cpu, {.compute = DType::f16}, false);
  const std::vector<float> values{1 + 0x1p-11f, 1 + 3 * 0x1p-11f, -65504, 65520, 0x1p-24f, 0.1f};
  store.write(p, std::as_bytes(std::span(values)));
  const std::vector<float> expected{1, 1 + 0x1p-9f, -65504, INFINITY, 0x1p-24f, 0x1.998p-4f};
  for (int i = 0; i < 6; ++i) {
    CHECK(to_float(p.compute().view().as<f16>()[i]) == expected[static_cast<std::size_t>(i)]);
    CHECK(p.master().view().as<float>()[i] == values[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("a bf16 compute copy is the master rounded to nearest, ties away from zero") {
  for (const MasterForm form : {MasterForm::whole, MasterForm::remainder}) {
    Device cpu(make_cpu_memory(), 1 << 24);
    const Mesh mesh({}, 0, self_factory());
    ParameterStore store(mesh);
    store.declare(matrix("w", {1, 5}));
    store.allocate(cpu, {.compute = DType::bf16, .form = form}, false);
    const Parameter& w = store.find("w");
    const std::vector<float> master{1.0f, 1 + 0x1p-8f, 1 + 0x1.7p-8f, -1 - 0x1.8p-7f,
                                    -1 - 0x1.8p-8f};
    store.write(w, std::as_bytes(std::span(master)));
    const std::vector<float> expected{1.0f, 1 + 0x1p-7f, 1 + 0x1p-7f, -1 - 0x1p-6f, -1 - 0x1p-7f};
    const auto holds_them = [&] {
      for (std::int64_t i = 0; i < 5; ++i) {
        CHECK(to_float(w.compute().view().as<bf16>()[i]) == expected[static_cast<std::size_t>(i)]);
      }
      CHECK(values_of(store, w) == master);
    };
    holds_them();
    // The same from bytes at an odd address, as a file may have them.
    std::vector<std::byte> odd(1);
    const auto bytes = std::as_bytes(std::span(master));
    odd.insert(odd.end(), bytes.begin(), bytes.end());
    const std::vector<float> sevens(5, 7);
    store.write(w, std::as_bytes(std::span(sevens)));
    CHECK(values_of(store, w) != master);
    store.write(w, std::span(odd).subspan(1));
    holds_them();
    const auto four = std::as_bytes(std::span(master).first(4));
    CHECK_THROWS_AS(store.write(w, four), InternalError);
    CHECK_THROWS_AS(store.write_part(w, 2, four), InternalError);
  }
}

TEST_CASE("masters as remainders take two bytes and keep every value") {
  constexpr std::int64_t kRows = 300, kCols = 401;  // more than is joined at a time
  const Mesh mesh({}, 0, self_factory());
  const auto make = [&](Device& device, ParameterStore& store, MasterForm form) {
    std::vector<ParameterSpec> specs;
    specs.push_back(matrix("q", {kRows, kCols}));
    specs.push_back(matrix("k", {7, kCols}));
    store.declare(std::move(specs));
    store.allocate(device, {.compute = DType::bf16, .form = form}, true);
    store.initialize(4);
  };
  Device one(make_cpu_memory(), 1 << 24), two(make_cpu_memory(), 1 << 24);
  ParameterStore whole(mesh), halves(mesh);
  make(one, whole, MasterForm::whole);
  make(two, halves, MasterForm::remainder);

  constexpr std::uint64_t kElements = (kRows + 7) * kCols;
  CHECK(one.ledger().held_bytes(Category::master) >= 4 * kElements);
  CHECK(two.ledger().held_bytes(Category::master) >= 2 * kElements);
  CHECK(two.ledger().held_bytes(Category::master) < 2 * kElements + 1024);
  CHECK(two.ledger().held_bytes(Category::params) == one.ledger().held_bytes(Category::params));
  for (const char* name : {"q", "k"}) {
    const Parameter& a = whole.find(name);
    const Parameter& b = halves.find(name);
    CHECK(!b.master().defined());
    CHECK(b.master_dtype() == DType::f32);
    CHECK(halves.read(b) == whole.read(a));
    CHECK(std::memcmp(a.compute().view().data, b.compute().view().data,
                      b.compute().view().bytes()) == 0);
    std::vector<float> part(3);
    halves.read_part(b, 5, std::as_writable_bytes(std::span(part)));
    CHECK(part[2] == values_of(whole, a)[7]);
  }
}

TEST_CASE("a parameter without a master is its bf16 values") {
  const Mesh mesh({}, 0, self_factory());
  Device cpu(make_cpu_memory(), 1 << 24);
  ParameterStore store(mesh);
  store.declare(matrix("w", {1, 3}));
  store.allocate(cpu, {.compute = DType::bf16, .form = MasterForm::none, .rounding_seed = 4}, true);
  const Parameter& w = store.find("w");
  CHECK(!w.has_master());
  CHECK(w.master_dtype() == DType::f32);
  CHECK(w.stored_dtype() == DType::bf16);
  CHECK(cpu.ledger().held_bytes(Category::master) == 0);
  const std::vector<float> given{1 + 0x1p-8f, -1 - 0x1.8p-8f, 3.5f};
  store.write(w, std::as_bytes(std::span(given)));
  CHECK(values_of(store, w) == std::vector<float>{1 + 0x1p-7f, -1 - 0x1p-7f, 3.5f});
  CHECK(w.rounding().on);
  CHECK(w.rounding().key == philox_key(4, "stochastic rounding", "w"));

  ParameterStore nearest(mesh), whole(mesh);
  nearest.declare(matrix("w", {1, 3}));
  nearest.allocate(cpu, {.compute = DType::bf16, .form = MasterForm::none}, false);
  CHECK(!nearest.find("w").rounding().on);
  whole.declare(matrix("w", {1, 3}));
  CHECK_THROWS_AS(whole.allocate(cpu, {.compute = DType::bf16, .rounding_seed = 4}, false),
                  InternalError);
}

TEST_CASE("ranks that hold parts draw the words of the whole") {
  for (const int dim : {0, 1}) {
    const Mesh mesh({.sizes = {1, 2, 1, 1}}, 1, meta_factory(nullptr));
    Device cpu(make_cpu_memory(), 1 << 24);
    ParameterStore store(mesh);
    ParameterSpec spec = matrix("w", {4, 6});
    spec.placement[Axis::tp].split_dim = dim;
    store.declare(std::move(spec));
    store.allocate(cpu, {.compute = DType::bf16, .form = MasterForm::none, .rounding_seed = 4},
                   false);
    const Parameter& w = store.find("w");
    const Shape& part = w.box().shape;
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const std::int64_t row = w.box().offset[0] + i / part[1];
      const std::int64_t col = w.box().offset[1] + i % part[1];
      CHECK(w.rounding().index(i) == static_cast<std::uint64_t>(row * 6 + col));
    }
  }
}

TEST_CASE("only bf16 copies of FP32 masters leave a remainder") {
  const Mesh mesh({}, 0, self_factory());
  Device cpu(make_cpu_memory(), 1 << 24);
  for (const DType compute : {DType::f32, DType::f64}) {
    for (const MasterForm form : {MasterForm::remainder, MasterForm::none}) {
      ParameterStore store(mesh);
      store.declare(matrix("w", {2, 2}));
      CHECK_THROWS_AS(store.allocate(cpu, {.compute = compute, .form = form}, false),
                      InternalError);
    }
  }
}

TEST_CASE("a split that does not divide is refused with the axis") {
  const Mesh mesh({.sizes = {1, 4, 1, 1}}, 0, meta_factory(nullptr));
  Placement placement;
  placement[Axis::tp].split_dim = 0;
  ParameterStore store(mesh);
  CHECK_THROWS_WITH_AS(store.declare(matrix("w", {6, 2}, placement)),
                       doctest::Contains("dim 0 of w [6, 2] (3 and 6 do)"), RecipeError);
}

namespace {

// The store of one of four data ranks: a matrix that is cut, one that is not, and a vector.
struct SlicedRig {
  explicit SlicedRig(int rank, MasterForm form = MasterForm::whole)
      : mesh({.sizes = {4, 1, 1, 1}}, rank, meta_factory(nullptr)), store(mesh) {
    store.declare({.name = "cut", .shape = {5, 1024}, .init = {}});
    store.declare({.name = "first", .shape = {4, 8}, .init = {}});
    store.declare({.name = "second", .shape = {4, 8}, .init = {}});
    store.declare({.name = "vector", .shape = {24}, .init = {}});
    store.declare({.name = "rows", .shape = {40, 96}, .init = {}});
    store.slice([](const Parameter& p) -> std::int64_t {
      if (p.name() == "rows") return 96;
      return p.name() == "first" || p.name() == "second" ? 0 : 1;
    });
    store.allocate(device, {.compute = DType::bf16, .form = form}, true);
  }
  Device device{make_cpu_memory(), 1 << 22};
  Mesh mesh;
  ParameterStore store;
};

}  // namespace

TEST_CASE("data ranks share what is updated: cut at 1,024 elements, whole, or of one rank") {
  std::int64_t cut_end = 0, rows_end = 0;
  int owners[2] = {};
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const SlicedRig rig(rank);
    const Parameter& cut = rig.store.find("cut");
    CHECK(cut.own_slice().first == cut_end);
    CHECK(cut.own_slice().count % 1024 == 0);
    CHECK(cut.own_slice().count <= 2048);
    CHECK(cut.master().numel() == cut.own_slice().count);
    CHECK(cut.grad().numel() == 5 * 1024);
    cut_end = cut.own_slice().end();
    const Parameter& rows = rig.store.find("rows");
    CHECK(rows.own_slice().first == rows_end);
    CHECK(rows.own_slice().first % 3072 == 0);
    rows_end = rows.own_slice().end();
    const Parameter& first = rig.store.find("first");
    CHECK(first.own_slice().count == (rank == 0 ? 32 : 0));
    CHECK(rig.store.find("second").own_slice().count == (rank == 1 ? 32 : 0));
    CHECK((first.master().numel() > 0) == (rank == 0));
    if (rank == 0) CHECK(first.master().shape() == Shape{4, 8});
    CHECK(first.has_separate_copy());
    CHECK(first.stored_dtype() == DType::f32);
    owners[0] += rig.store.find("vector").own_slice().count == 24;
    owners[1] += rig.store.find("vector").own_slice().count == 0;
  }
  CHECK(cut_end == 5 * 1024);
  CHECK(rows_end == 40 * 96);
  CHECK(owners[0] == 1);
  CHECK(owners[1] == 3);
}

TEST_CASE(
    "what no gradient trains is whole on every rank, in the masters' dtype, and has no sink") {
  for (const MasterForm form : {MasterForm::whole, MasterForm::remainder, MasterForm::none}) {
    Device device(make_cpu_memory(), 1 << 22);
    const Mesh mesh({.sizes = {4, 1, 1, 1}}, 1, meta_factory(nullptr));
    ParameterStore store(mesh);
    store.declare({.name = "trained", .shape = {8, 1024}});
    store.declare({.name = "fixed", .shape = {8, 1024}, .trained = false});
    store.slice([](const Parameter&) { return 1; }, {.gradients = true, .parameters = true});
    store.allocate(device, {.compute = DType::bf16, .form = form}, true);
    store.initialize(1);
    const Parameter& fixed = store.find("fixed");
    CHECK_FALSE(fixed.is_sliced());
    CHECK_FALSE(fixed.grad().defined());
    CHECK(fixed.compute().dtype() == DType::f32);
    CHECK(fixed.stored_dtype() == DType::f32);
    CHECK(store.num_elements() == 8 * 1024);
    REQUIRE(store.local_groups().size() == 1);
    CHECK(store.local_groups()[0]->name() == "trained");
    CHECK(store.local().size() == 2);
    std::vector<float> values(8 * 1024);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i) / 7;
    store.write(fixed, std::as_bytes(std::span(values)));
    CHECK(values_of(store, fixed) == values);
  }
  const Mesh mesh({}, 0, self_factory());
  ParameterStore store(mesh);
  CHECK_THROWS_AS(
      store.declare({{.name = "a", .shape = {2}}, {.name = "b", .shape = {2}, .trained = false}}),
      InternalError);
}

TEST_CASE("a rank writes its slice of a master and all of the copy, and reads its slice alone") {
  std::vector<float> values(5 * 1024);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i) / 5000;
  for (const MasterForm form : {MasterForm::whole, MasterForm::remainder}) {
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      SlicedRig rig(rank, form);
      const Parameter& cut = rig.store.find("cut");
      const ParameterSlice& own = cut.own_slice();
      // In parts that begin and end within slices.
      const auto bytes = std::as_bytes(std::span(values));
      rig.store.write_part(cut, 0, bytes.first(1500 * sizeof(float)));
      rig.store.write_part(cut, 1500, bytes.subspan(1500 * sizeof(float)));
      std::vector<float> read(static_cast<std::size_t>(own.count));
      rig.store.read_part(cut, own.first, std::as_writable_bytes(std::span(read)));
      CHECK(std::equal(read.begin(), read.end(), values.begin() + own.first));
      for (std::size_t i = 0; i < values.size(); ++i) {
        REQUIRE(cut.compute().view().as<bf16>()[i].bits == split_master(values[i]).copy.bits);
      }
      read.resize(1);
      const std::int64_t outside = own.first > 0 ? own.first - 1 : own.end();
      CHECK_THROWS_AS(rig.store.read_part(cut, outside, std::as_writable_bytes(std::span(read))),
                      InternalError);
    }
  }
}

}  // namespace llmtrain
