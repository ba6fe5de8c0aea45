#include "kernels/matmul.hpp"

#include <dlfcn.h>
#include <filesystem>

#include "lib/base/file.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/cuda_emulation/fake_cublaslt.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

using Mode = FakeCublasLt::Mode;

/// The emulated plugin's library; null where the plugin is the real one, whose library multiplies
/// what it takes: there a build with LLMTRAIN_CUDA_LIBRARIES=OFF tests our own products.
FakeCublasLt* fake_library() {
  void* plugin =
      ::dlopen(load_backend(DeviceKind::cuda).file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto function = reinterpret_cast<FakeCublasLtFunction>(::dlsym(plugin, "fake_cublaslt"));
  return function != nullptr ? function() : nullptr;
}

/// The fake library in another mode, for a while.
class InMode {
 public:
  explicit InMode(Mode mode) : fake_(fake_library()) {
    if (fake_ == nullptr) return;
    before_ = fake_->mode;
    fake_->mode = mode;
  }
  ~InMode() {
    if (fake_ != nullptr) fake_->mode = before_;
  }
  InMode(const InMode&) = delete;
  InMode& operator=(const InMode&) = delete;
  bool possible() const { return fake_ != nullptr; }

 private:
  FakeCublasLt* fake_;
  Mode before_ = Mode::takes;
};

/// By the fake library.
std::int64_t products_queued() { return fake_library()->products; }

enum class Bias : std::uint8_t { none, narrow, wide };

struct Problem {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  bool wide_c = false;  // FP32 result of bf16 operands
  bool accumulate = false;
  Bias bias = Bias::none;
  std::int64_t gap = 0;
  std::int64_t bias_gap = 0;  // above 1, the bias begins at an odd address
  Determinism determinism = Determinism::run;
};

/// The operands of a problem; the tensors own what the kernel sees.
struct Operation {
  Tensor a, b, c, bias;
  Matmul kernel;

  Operation(Machine& machine, const Problem& p) {
    const auto stored = [](bool transposed, std::int64_t rows, std::int64_t cols) {
      return transposed ? Shape{cols, rows} : Shape{rows, cols};
    };
    a = machine.operand("a", stored(p.transpose_a, p.m, p.k), p.gap);
    b = machine.operand("b", stored(p.transpose_b, p.k, p.n), p.gap);
    const bool narrow = machine.operand_type() == DType::bf16 && !p.wide_c;
    const DType rounded = narrow ? DType::bf16 : DType::f32;
    const DType result = p.wide_c ? machine.wide() : machine.compute();
    c = p.accumulate ? machine.normals("c", {p.m, p.n}, result, rounded, p.gap)
                     : machine.empty({p.m, p.n}, result, p.gap);
    if (p.bias == Bias::narrow) {
      bias = machine.normals("bias", {p.n}, result, rounded, p.bias_gap);
    }
    if (p.bias == Bias::wide) {
      bias = machine.normals("bias", {p.n}, machine.wide(), DType::f32, p.bias_gap);
    }
    kernel = {a, b, c, bias, p.transpose_a, p.transpose_b, p.accumulate};
  }
};

void run(Machine& machine, const Problem& p, const Operation& operation) {
  KernelCtx ctx = machine.ctx();
  ctx.determinism = p.determinism;
  launch(ctx, operation.kernel);
}

void compare_here(const Problem& p, DType dtype) {
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  CAPTURE(p.transpose_a);
  CAPTURE(p.transpose_b);
  CAPTURE(p.wide_c);
  CAPTURE(p.accumulate);
  CAPTURE(p.gap);
  // A few sums of many are further off than the reference's worst, which is of another order.
  compare(
      [&](Machine& machine) {
        const Operation operation(machine, p);
        run(machine, p, operation);
        return outputs(machine, operation.c);
      },
      dtype, {.times_reference = 3, .floor = 4});
}

/// As compare_here, and the fake library must have multiplied, or not at all.
void compare_in(Mode mode, const Problem& p, DType dtype) {
  const InMode in(mode);
  const std::int64_t before = in.possible() ? products_queued() : 0;
  compare_here(p, dtype);
  const bool taken = mode != Mode::refuses && dtype != DType::f64;
  if (in.possible()) CHECK(products_queued() - before == (taken ? 2 : 0));
}

/// By the library and by ourselves.
void compare_both(const Problem& p, DType dtype) {
  compare_in(Mode::takes, p, dtype);
  if (fake_library() != nullptr && dtype != DType::f64) compare_in(Mode::refuses, p, dtype);
}

/// In every dtype of operands and result.
void compare_all(Problem p) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) compare_both(p, dtype);
  p.wide_c = true;
  compare_both(p, DType::bf16);
}

Machine gpu_machine(DType dtype) { return Machine(Place::gpu, dtype, dtype); }

}  // namespace

TEST_CASE("a product agrees with the reference in every form and dtype") {
  for (const auto& [m, n, k, gap] : {std::array<std::int64_t, 4>{1, 1, 1, 0},
                                     {1, 7, 5, 2},
                                     {3, 1, 17, 0},
                                     {24, 40, 32, 8},
                                     {65, 33, 31, 6}}) {
    for (int form = 0; form < 8; ++form) {
      Problem p{m, n, k, (form & 1) != 0, (form & 2) != 0, false, (form & 4) != 0};
      p.gap = gap;
      compare_all(p);
    }
  }
}

TEST_CASE("products of many tiles and of long sums") {
  for (const bool transpose : {false, true}) {
    compare_all({200, 150, 70, transpose, !transpose});
    compare_all({40, 16, 530, transpose, transpose, false, true});
  }
  // More rows of tiles than one group has, and a group that is not full.
  compare_both({600, 70, 9}, DType::f64);
}

TEST_CASE("a bias is added once, whatever its dtype and address") {
  for (const Bias bias : {Bias::narrow, Bias::wide}) {
    for (const std::int64_t bias_gap : {0, 3}) {
      Problem p{19, 37, 23, false, true, false, false, bias, 5, bias_gap};
      compare_all(p);
      p.transpose_a = true;
      compare_all(p);
    }
  }
}

TEST_CASE("the library multiplies fp32 and bf16, and ours what it does not take") {
  const InMode takes(Mode::takes);
  if (!takes.possible()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine machine = gpu_machine(dtype);
    const Problem p{16, 8, 24};
    const Operation operation(machine, p);
    const std::int64_t before = products_queued();
    const std::int64_t asked = fake_library()->heuristics;
    for (int i = 0; i < 3; ++i) run(machine, p, operation);
    CHECK(products_queued() - before == (dtype == DType::f64 ? 0 : 3));
    // Algorithms are asked for once per shape.
    CHECK(fake_library()->heuristics - asked == (dtype == DType::f64 ? 0 : 1));
  }
}

TEST_CASE("each operand's alignment is its own") {
  // Strides are multiples of 16 bytes, addresses of 8 or of 256.
  for (int odd = 0; odd < 4; ++odd) {
    compare(
        [&](Machine& machine) {
          const Tensor a = machine.operand("a", {16, 32}, (odd & 1) * 8);
          const Tensor b = machine.operand("b", {16, 32}, (odd & 2) * 4);
          const Tensor c = machine.output({16, 16});
          machine.run(Matmul{.a = a, .b = b, .c = c, .bias = {}, .transpose_b = true});
          return outputs(machine, c);
        },
        DType::bf16, {.times_reference = 3, .floor = 4});
  }
}

TEST_CASE("products of one shape each have their own operands") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare(
        [&](Machine& machine) {
          const Tensor x = machine.operand("x", {8, 16});
          std::vector<Tensor> ys, biases;  // kept: their addresses are not used again
          for (const std::string_view layer : {"one", "two"}) {
            const Tensor w = machine.operand(layer, {24, 16});
            biases.push_back(machine.normals(layer, {24}, machine.compute(), dtype));
            ys.push_back(machine.output({8, 24}));
            machine.run(
                Matmul{.a = x, .b = w, .c = ys.back(), .bias = biases.back(), .transpose_b = true});
          }
          return outputs(machine, ys[0], ys[1]);
        },
        dtype, {.times_reference = 3, .floor = 4});
  }
}

TEST_CASE("an algorithm that the library then refuses is followed by the next") {
  compare_in(Mode::fickle, {24, 40, 32, false, true, false, false, Bias::narrow}, DType::bf16);
  compare_in(Mode::fickle, {24, 40, 32, true, false, true, true}, DType::bf16);
}

TEST_CASE("products hold under every determinism and with little workspace") {
  for (const Determinism determinism : {Determinism::fast, Determinism::run, Determinism::layout}) {
    Problem p{24, 40, 64, true, false, true, true};
    p.determinism = determinism;
    compare_in(Mode::takes, p, DType::bf16);
    p.wide_c = false;
    compare_in(Mode::takes, p, DType::bf16);
    compare_in(Mode::takes, p, DType::f32);
    const bool in_sequence = fake_library() != nullptr && fake_library()->reduction == 0;
    if (fake_library() != nullptr) CHECK(in_sequence == (determinism == Determinism::layout));
  }
  for (const std::uint64_t bytes : {0, 1, 300, 1024, 70 << 10}) {
    CAPTURE(bytes);
    for (const Bias bias : {Bias::none, Bias::narrow, Bias::wide}) {
      const Problem p{24, 40, 64, false, true, false, false, bias};
      const auto on = [&](Place place, std::uint64_t workspace_bytes) {
        Machine machine(place, DType::bf16, DType::bf16);
        const Operation operation(machine, p);
        KernelCtx ctx = machine.ctx();
        ctx.library_workspace_bytes = workspace_bytes;
        launch(ctx, operation.kernel);
        return machine.read(operation.c);
      };
      const Values expected = on(Place::reference, 0), found = on(Place::gpu, bytes);
      CHECK(max_difference(expected, found) <= 0x1p-7 * max_magnitude(expected));
    }
  }
}

TEST_CASE("a product without terms is zero or the bias, and empty results are left alone") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine machine = gpu_machine(dtype);
    const auto product = [&](const Problem& p) {
      const Operation operation(machine, p);
      run(machine, p, operation);
      return machine.read(operation.c);
    };
    CHECK(product({2, 3, 0}) == Values(6, 0.0));
    CHECK(product({0, 3, 4}).empty());
    CHECK(product({3, 0, 4}).empty());
    Problem biased{2, 3, 0};
    biased.bias = Bias::narrow;
    const Operation operation(machine, biased);
    run(machine, biased, operation);
    const Values bias = machine.read(operation.bias);
    Values expected = bias;
    expected.insert(expected.end(), bias.begin(), bias.end());
    CHECK(machine.read(operation.c) == expected);
    Problem more{2, 3, 0};
    more.accumulate = true;
    const Operation same(machine, more);
    const Values before = machine.read(same.c);
    run(machine, more, same);
    CHECK(machine.read(same.c) == before);
  }
}

TEST_CASE("products of small integers are exact") {
  const Values a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 2, -1, 1, 3}, c = {100, 0, 0, 0};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine machine = gpu_machine(dtype);
    const Tensor x = machine.of(a, {2, 3}, dtype), y = machine.of(b, {2, 3}, dtype);
    const Tensor z = machine.of(c, {2, 2}, dtype);
    machine.run(Matmul{x, y, z, {}, false, true, true});
    CHECK(machine.read(z) == Values{107, 10, 16, 19});
  }
}

TEST_CASE("a product leaves the gaps between strided rows alone, and NaN stays NaN") {
  for (const Mode mode : {Mode::takes, Mode::refuses}) {
    const InMode in(mode);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      Machine machine = gpu_machine(dtype);
      const Tensor whole = machine.empty({5, 12}, dtype);
      const Tensor a = machine.of({1, NAN, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 2}, dtype);
      const Tensor b = machine.operand("b", {2, 6});
      machine.run(Matmul{a, b, whole.columns(3, 6), {}});
      const Values values = machine.read(whole);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool number = i >= 12 && i % 12 >= 3 && i % 12 < 9;
        CHECK(std::isnan(values[i]) == !number);
      }
    }
  }
}

namespace {

/// A file's lines after the header, as (product, microseconds).
std::vector<std::pair<std::string, double>> measured_in(const std::filesystem::path& file) {
  std::vector<std::pair<std::string, double>> lines;
  const std::string text = read_file(file);
  for (std::size_t at = text.find('\n') + 1; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    lines.emplace_back(line.substr(0, line.find('\t')),
                       std::stod(line.substr(line.rfind('\t') + 1)));
    at = end + 1;
  }
  return lines;
}

}  // namespace

TEST_CASE("tuned products are measured once, and are right") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / "llmtrain_matmul_test_algorithms.txt";
  std::filesystem::remove(file);
  const InMode takes(Mode::takes);
  const std::vector<Problem> problems = {{24, 40, 64, true, false, true, true},
                                         {24, 40, 64, false, true, false, false, Bias::wide, 16},
                                         {7, 5, 9, false, true, false, false, Bias::narrow}};
  for (const int pass : {0, 1}) {
    Machine machine = gpu_machine(DType::bf16);
    std::vector<Operation> operations;
    std::vector<Matmul> products;
    for (const Problem& p : problems) {
      operations.emplace_back(machine, p);
      products.push_back(operations.back().kernel);
    }
    const Values before = machine.read(operations[0].c);
    const Tensor scratch = machine.zeros({6 << 20}, DType::bf16);
    const TunedProducts report = gpu().tune_products(machine.ctx(), products, scratch.view(), file);
    // The step's own memory is not touched.
    CHECK(machine.read(operations[0].c) == before);
    if (report.left_out == products.size()) return;  // a build without a library
    CHECK(report.left_out == 0);
    CHECK(report.measured == (pass == 0 ? products.size() : 0));
    CHECK(report.known == (pass == 0 ? 0 : products.size()));
    for (std::size_t i = 0; i < problems.size(); ++i) {
      run(machine, problems[i], operations[i]);
      Machine reference(Place::reference, DType::bf16, DType::bf16);
      const Operation operation(reference, problems[i]);
      reference.run(operation.kernel);
      const Values expected = reference.read(operation.c);
      CHECK(max_difference(machine.read(operations[i].c), expected) <=
            0x1p-7 * max_magnitude(expected));
    }
  }
  const auto lines = measured_in(file);
  REQUIRE(lines.size() == problems.size());
  if (fake_library() != nullptr) {
    for (const auto& [product, microseconds] : lines) {
      // FP32 sums may pass through the output type; odd sizes suit one algorithm only.
      const double expected = product.find("m7") != product.npos      ? 50
                              : product.find(">fp32") != product.npos ? 12
                                                                      : 20;
      CHECK(microseconds == doctest::Approx(expected));
    }
  }
  std::filesystem::remove(file);
}

TEST_CASE("without room products are left out, and the file alone still serves") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / "llmtrain_matmul_test_algorithms.txt";
  std::filesystem::remove(file);
  Machine machine = gpu_machine(DType::bf16);
  const Operation operation(machine, {24, 40, 64});
  const std::vector<Matmul> products = {operation.kernel};
  const Tensor small = machine.zeros({128 << 10}, DType::f32);  // not even for the workspace
  CHECK(gpu().tune_products(machine.ctx(), products, small.view(), file).left_out == 1);
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK(gpu().tune_products(machine.ctx(), products, View{}, file).left_out == 1);
}
