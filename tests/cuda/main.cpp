// Where the plugin finds no GPU nothing is tested, and the exit code says so. Operands are drawn
// anew with every LLMTRAIN_TEST_SEED: a number, or "fresh" for one that nobody has chosen.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <cstdlib>
#include <random>

#include <doctest/doctest.h>

#include "tests/cuda/machine.hpp"
#include "tests/cuda/skip.hpp"

namespace {

/// A case that checks nothing here is named with its reason, and is no success.
struct SkippedCases : doctest::IReporter {
  static inline int run = 0, skipped = 0;
  const char* name = "";

  explicit SkippedCases(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& data) override {
    ++run;
    name = data.m_name;
    llmtrain::kernels::gpu_trial::skip_reason().clear();
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    const std::string& reason = llmtrain::kernels::gpu_trial::skip_reason();
    if (reason.empty()) return;
    ++skipped;
    std::printf("SKIPPED: %s: %s\n", name, reason.c_str());
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("skipped", 1, SkippedCases);

/// False where the setting is neither. A test that fails is repeated with the seed that is printed.
bool take_seed() {
  const char* const setting = std::getenv("LLMTRAIN_TEST_SEED");
  if (setting == nullptr) return true;
  const std::string_view text = setting;
  char* end = nullptr;
  const std::uint64_t seed =
      text == "fresh" ? std::random_device{}() : std::strtoull(setting, &end, 10);
  if (text.empty() || (end != nullptr && *end != '\0')) {
    std::fprintf(stderr, "LLMTRAIN_TEST_SEED is '%s', expected a number or fresh\n", setting);
    return false;
  }
  llmtrain::kernels::gpu_trial::test_seed() = seed;
  // Beside the list of test cases that scripts read.
  std::fprintf(stderr, "operands are drawn from LLMTRAIN_TEST_SEED=%llu\n",
               static_cast<unsigned long long>(seed));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  if (!take_seed()) return 1;
  const auto& loaded = llmtrain::kernels::load_backend(llmtrain::DeviceKind::cuda);
  if (loaded.backend == nullptr) {
    std::fprintf(stderr, "no CUDA plugin: %s\n", loaded.problem.c_str());
    return 1;
  }
  const llmtrain::kernels::BackendReport report = loaded.backend->report();
  if (!report.problem.empty()) {
    std::printf("skipped: no GPU (%s)\n", report.problem.c_str());
    return kSkipped;
  }
  const int status = doctest::Context(argc, argv).run();
  const int run = SkippedCases::run, skipped = SkippedCases::skipped;
  if (skipped == 0) return status;
  std::printf("%d of these %d test cases checked nothing here and count as skipped\n", skipped,
              run);
  return status == 0 && skipped == run ? kSkipped : status;
}
