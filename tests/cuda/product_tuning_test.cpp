#include <cstdlib>

#include "kernels/cuda/rules/product_scratch.hpp"
#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "tests/cuda/matmul_case.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/support/temp_dir.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

const std::vector<Problem> kProblems = {{24, 40, 64, true, false, true, true},
                                        {24, 40, 64, false, true, false, false, Bias::wide, 16},
                                        {7, 5, 9, false, true, false, false, Bias::narrow}};

std::span<const Problem> leading(std::size_t count) { return std::span(kProblems).first(count); }

/// Products of a new machine, in scratch memory of exactly the size that a plan gives them.
struct Bench {
  Machine machine = gpu_machine(DType::bf16);
  std::vector<Operation> operations;
  std::vector<Product> products;

  explicit Bench(std::span<const Problem> problems = kProblems) {
    for (const Problem& p : problems) {
      operations.emplace_back(machine, p);
      products.push_back(operations.back().kernel);
    }
  }

  TunedProducts tune(const ProductMemory& memory) {
    const std::uint64_t bytes =
        cuda::tuning_scratch_bytes(products, machine.ctx().library_workspace_bytes);
    const Tensor scratch = machine.zeros({static_cast<std::int64_t>(bytes) / 2}, DType::bf16);
    return gpu().tune_products(machine.ctx(), products, scratch.view(), memory);
  }
};

/// Lines of choices after the header, as (product, microseconds).
std::vector<std::pair<std::string, double>> choices_in(const std::string& text) {
  std::vector<std::pair<std::string, double>> lines;
  for (std::size_t at = text.find('\n') + 1; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    lines.emplace_back(line.substr(0, line.find('\t')),
                       std::stod(line.substr(line.rfind('\t') + 1)));
    at = end + 1;
  }
  return lines;
}

/// Reverses which of the fake library's algorithms is fast, for a while.
class Reversed {
 public:
  Reversed() { fake_library()->reversed_times = true; }
  ~Reversed() { fake_library()->reversed_times = false; }
  Reversed(const Reversed&) = delete;
  Reversed& operator=(const Reversed&) = delete;
};

}  // namespace

TEST_CASE("tuned products are measured once, and are right") {
  const test::TempDir here;
  const auto file = here.path() / "cache" / "products.txt";
  const InMode takes(Mode::takes);
  for (const int pass : {0, 1}) {
    Bench bench;
    const Values before = bench.machine.read(bench.operations[0].c);
    const TunedProducts tuned = bench.tune({.choices = "", .file = file});
    // The step's own memory is not touched.
    CHECK(bench.machine.read(bench.operations[0].c) == before);
    if (skip_if(tuned.left_out == kProblems.size(), kNoLibrary)) return;
    CHECK(tuned.left_out == 0);
    CHECK(tuned.kept == 0);
    CHECK(tuned.measured == (pass == 0 ? kProblems.size() : 0));
    CHECK(tuned.known == (pass == 0 ? 0 : kProblems.size()));
    CHECK(tuned.choices == read_file(file));
    for (std::size_t i = 0; i < kProblems.size(); ++i) {
      run(bench.machine, kProblems[i], bench.operations[i]);
      Machine reference(Place::reference, DType::bf16, DType::bf16);
      const Operation operation(reference, kProblems[i]);
      reference.run(operation.kernel);
      const Values expected = reference.read(operation.c);
      CHECK(max_difference(bench.machine.read(bench.operations[i].c), expected) <=
            0x1p-7 * max_magnitude(expected));
    }
  }
  const auto lines = choices_in(read_file(file));
  REQUIRE(lines.size() == kProblems.size());
  if (fake_library() == nullptr) return;
  for (const auto& [product, microseconds] : lines) {
    // FP32 sums may pass through the output type; odd sizes suit one algorithm only, which has one
    // order of tiles; of the others the second is the faster one. What takes 10 in a burst
    // keeps 40.
    const double expected = product.find("m7") != product.npos      ? 50
                            : product.find(">fp32") != product.npos ? 11
                                                                    : 19;
    CHECK(microseconds == doctest::Approx(expected));
  }
}

TEST_CASE("products that do not differ in what a choice depends on count once") {
  const test::TempDir here;
  const Problem p{24, 40, 64};
  Bench bench(std::vector<Problem>{p, p});
  const TunedProducts tuned = bench.tune({.choices = "", .file = here.path() / "products.txt"});
  if (skip_if(tuned.left_out > 0, kNoLibrary)) return;
  CHECK(tuned.total() == 1);
}

TEST_CASE("who is asked to stop measures no more, and what was measured is kept") {
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  const InMode takes(Mode::takes);
  int asked = 0;
  const TunedProducts tuned =
      Bench().tune({.choices = "", .file = file, .stop = [&] { return ++asked > 1; }});
  if (skip_if(tuned.left_out == kProblems.size(), kNoLibrary)) return;
  CHECK(tuned.measured == 1);
  CHECK(tuned.left_out == kProblems.size() - 1);
  CHECK(Bench().tune({.choices = "", .file = file}).known == 1);
}

TEST_CASE("an algorithm in the file that does not suit its product is measured anew") {
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  const InMode takes(Mode::takes);
  for (const char digit : {' ', '0', 'f'}) {
    if (digit != ' ') {
      std::string text = read_file(file);
      write_file_atomic(file, text.replace(text.rfind('\t') - 128, 128, 128, digit));
    }
    Bench bench(leading(1));
    const TunedProducts tuned = bench.tune({.choices = "", .file = file});
    if (skip_if(tuned.left_out == 1, kNoLibrary)) return;
    CHECK(tuned.measured == 1);
  }
}

TEST_CASE("without room products are left out, and choices alone still serve") {
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  const InMode takes(Mode::takes);
  Bench bench;
  const Tensor small = bench.machine.zeros({128 << 10}, DType::f32);  // not for the workspace
  for (const View& scratch : {small.view(), View{}}) {
    const TunedProducts tuned = gpu().tune_products(bench.machine.ctx(), bench.products, scratch,
                                                    {.choices = "", .file = file});
    CHECK(tuned.left_out == kProblems.size());
    CHECK_FALSE(std::filesystem::exists(file));
  }
  if (fake_library() == nullptr) return;
  const std::string choices = bench.tune({.choices = "", .file = file}).choices;
  Bench other;
  gpu().tune_products(other.machine.ctx(), {}, {}, {.choices = choices, .file = {}});
  run(other.machine, kProblems[0], other.operations[0]);
  other.machine.read(other.operations[0].c);
  CHECK(fake_library()->reduction == 4);  // of the choice; the library's own guess has 2
}

TEST_CASE("a run's own choices come before the file's, and before new times") {
  if (skip_if(fake_library() == nullptr, kStandInAlone)) return;
  const test::TempDir here;
  const InMode takes(Mode::takes);
  const std::string first = Bench().tune({.choices = "", .file = here.path() / "a"}).choices;
  const Reversed reversed;
  const std::string other = Bench().tune({.choices = "", .file = here.path() / "b"}).choices;
  REQUIRE(first != other);
  for (const char* file : {"b", "none"}) {
    Bench bench;
    const TunedProducts tuned = bench.tune({.choices = first, .file = here.path() / file});
    CHECK(tuned.kept == kProblems.size());
    CHECK(tuned.total() == kProblems.size());
    CHECK(tuned.choices == first);
  }
  CHECK_FALSE(std::filesystem::exists(here.path() / "none"));
  CHECK(read_file(here.path() / "b") == other);
  // What is in the file already stays, whatever another run found meanwhile.
  Bench bench(leading(2));
  const std::string two = bench.tune({.choices = "", .file = here.path() / "c"}).choices;
  const TunedProducts three = Bench().tune({.choices = first, .file = here.path() / "c"});
  CHECK(three.measured == 0);
  CHECK(read_file(here.path() / "c") == two);
}

TEST_CASE("another version of the library measures anew beside the old lines") {
  if (skip_if(fake_library() == nullptr, kStandInAlone)) return;
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  const InMode takes(Mode::takes);
  Bench().tune({.choices = "", .file = file});
  ::setenv("LLMTRAIN_FAKE_CUBLASLT_VERSION", "130200", 1);
  const TunedProducts newer = Bench().tune({.choices = "", .file = file});
  ::unsetenv("LLMTRAIN_FAKE_CUBLASLT_VERSION");
  CHECK(newer.measured == kProblems.size());
  CHECK(Bench().tune({.choices = "", .file = file}).known == kProblems.size());
  CHECK(choices_in(read_file(file)).size() == 2 * kProblems.size());
}

TEST_CASE("a file that cannot be written leaves the choices as they are") {
  const test::TempDir here;
  write_file_atomic(here.path() / "no_directory", "text");
  const InMode takes(Mode::takes);
  const TunedProducts tuned =
      Bench().tune({.choices = "", .file = here.path() / "no_directory" / "products.txt"});
  CHECK(tuned.total() == kProblems.size());
  if (fake_library() != nullptr) CHECK(choices_in(tuned.choices).size() == kProblems.size());
}

TEST_CASE("each product is timed on operands that no other left behind") {
  if (skip_if(fake_library() == nullptr, kStandInAlone)) return;
  const test::TempDir here;
  const InMode takes(Mode::takes);
  const auto operands_after = [&](std::span<const Problem> problems, const char* file) {
    Bench(problems).tune({.choices = "", .file = here.path() / file});
    return fake_library()->operands_hash;
  };
  const std::vector<Problem> both = {kProblems[0], kProblems[1]};
  CHECK(operands_after(both, "a") == operands_after(std::span(both).last(1), "b"));
}

TEST_CASE(
    "an algorithm that is refused while it is timed is no choice, and an error ends the run") {
  if (skip_if(fake_library() == nullptr, kStandInAlone)) return;
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  for (const std::int64_t patience : {0, 2, 7}) {
    const InMode fickle(Mode::fickle);
    fake_library()->patience = patience;
    Bench bench(leading(1));
    const TunedProducts tuned = bench.tune({.choices = "", .file = file});
    CHECK(choices_in(tuned.choices).at(0).second == doctest::Approx(11));
    std::filesystem::remove(file);
  }
  const InMode breaks(Mode::breaks);
  CHECK_THROWS_AS(Bench().tune({.choices = "", .file = file}), DeviceError);
}
