#include <filesystem>

#include "lib/base/file.hpp"
#include "tests/cuda/matmul_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

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

TEST_CASE("an algorithm in the file that does not suit its product is measured anew") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / "llmtrain_matmul_test_algorithms.txt";
  std::filesystem::remove(file);
  const InMode takes(Mode::takes);
  for (const int pass : {0, 1}) {
    Machine machine = gpu_machine(DType::bf16);
    const Operation operation(machine, {24, 40, 64});
    const Tensor scratch = machine.zeros({6 << 20}, DType::bf16);
    const std::vector<Matmul> products = {operation.kernel};
    const TunedProducts report = gpu().tune_products(machine.ctx(), products, scratch.view(), file);
    if (report.left_out == 1) return;  // a build without a library
    CHECK(report.measured == 1);
    std::string text = read_file(file);
    const std::size_t digits = text.rfind('\t') - 128;
    write_file_atomic(file, text.replace(digits, 128, 128, pass == 0 ? '0' : 'f'));
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
