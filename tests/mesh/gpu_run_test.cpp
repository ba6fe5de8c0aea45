// `llmtrain run` under mpirun on GPUs: an emulated one for all ranks, or one for each.
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

// Of this process and those that it starts, for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

bool says(const ProcessResult& result, std::string_view text) {
  return result.output.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("ranks on GPUs train, evaluate, decode and go on as one rank on the CPU does" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const ProcessResult one = w.run(1, {"run.output_dir=one"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const auto numbers = losses_and_norms(w.scratch / "one");
  for (const std::string_view share :
       {"parallelism.dp=2", "parallelism.zero=3", "parallelism.tp=2", "parallelism.pp=2"}) {
    CAPTURE(share);
    const auto run = [&](ProcessEvents events = {}) {
      events.limit_seconds = 60;
      return w.run(2, {"run.output_dir=gpus", "run.device=cuda", std::string(share)}, events);
    };
    // Stopped in between, so that what ranks save and read is tried, too.
    REQUIRE(run({.signal = SIGTERM, .signal_after = "step-00000004"}).exit_code != 0);
    const ProcessResult rest = run();
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(says(rest, "steps took memory as planned"));
    CHECK(says(rest,
               "device: emulated GPU, 1 for 2 ranks of this machine; ranks exchange through "
               "host memory"));
    const bool alone = share == "parallelism.dp=2";  // until the update, whose norm is everybody's
    CHECK(says(rest, "launches are made one by one in") == !alone);
    const auto others = losses_and_norms(w.scratch / "gpus");
    REQUIRE(others.size() == numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      CHECK(std::abs(others[i] - numbers[i]) <= 1e-9 * numbers[i]);
    }
    CHECK(read_file(w.scratch / "gpus" / "samples.jsonl") ==
          read_file(w.scratch / "one" / "samples.jsonl"));
    std::filesystem::remove_all(w.scratch / "gpus");
  }
}

TEST_CASE("ranks take the GPUs of their machine in turn" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const Variable gpus("LLMTRAIN_FAKE_GPUS", "2");
  const ProcessResult two = w.run(2, {"run.output_dir=d", "run.device=cuda", "training.max_steps=2",
                                      "parallelism.zero=2", "eval.interval=null"});
  REQUIRE_MESSAGE(two.exit_code == 0, two.output);
  CHECK(says(two, "device: emulated GPU, 2 for 2 ranks of this machine; "));
}

}  // namespace llmtrain::test
