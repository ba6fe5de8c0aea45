// `llmtrain run` under mpirun on GPUs: an emulated one for all ranks, or one for each.
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/mesh/workshop.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

namespace {

bool says(const ProcessResult& result, std::string_view text) {
  return result.output.find(text) != std::string::npos;
}

}  // namespace

namespace {

// `how`: what the run says of exchanges. Where there is little time, of `first` alone.
void compare_with_one_rank(std::string_view how, const std::string& first) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  // Enough of them that one is left, however late the signal below is heard.
  const std::vector<std::string> common{"training.max_steps=10"};
  const auto run = [&](int ranks, std::vector<std::string> overrides, ProcessEvents events = {}) {
    overrides.insert(overrides.end(), common.begin(), common.end());
    events.limit_seconds = 60;
    return w.run(ranks, overrides, events);
  };
  const ProcessResult one = run(1, {"run.output_dir=one"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const auto numbers = losses_and_norms(w.scratch / "one");
  for (const std::string share : {"parallelism.zero=3", "parallelism.pp=2"}) {
    if (is_quick() && share != first) continue;
    CAPTURE(share);
    const std::vector<std::string> layout{"run.output_dir=gpus", "run.device=cuda", share};
    // Stopped in between, so that what ranks save and read is tried, too.
    const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
    REQUIRE(run(2, layout, stop).exit_code != 0);
    const ProcessResult rest = run(2, layout);
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(says(rest, "steps took memory as planned"));
    CHECK(says(rest, "for 2 ranks of this machine\n"));
    CHECK(says(rest, how));
    CHECK(says(rest, "launches are made one by one in "));
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

}  // namespace

TEST_CASE("ranks on GPUs train, evaluate, decode and go on as one rank on the CPU does" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  compare_with_one_rank("ranks exchange through host memory (rank 0: 2 ranks share a GPU)",
                        "parallelism.zero=3");
}

TEST_CASE("ranks on GPUs that NCCL connects train and go on as one rank on the CPU does" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Variable gpus("LLMTRAIN_FAKE_GPUS", "2");
  compare_with_one_rank("ranks exchange by NCCL", "parallelism.pp=2");
}

TEST_CASE("where NCCL cannot be, all ranks know, and refuse it if the recipe wants it" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const Variable gpus("LLMTRAIN_FAKE_GPUS", "2");
  const auto run = [&](std::vector<std::string> overrides, int ranks = 2) {
    overrides.insert(overrides.begin(), {"run.device=cuda", "training.max_steps=1",
                                         "eval.interval=null", "eval.sample_prompts=[]"});
    return w.run(ranks, overrides);
  };
  const auto refused = [&](const ProcessResult& result, std::string_view text) {
    CAPTURE(result.output);
    CHECK(result.exit_code != 0);
    CHECK(says(result, text));
  };
  const std::string wanted = "parallelism.gpu_collectives=nccl";
  refused(run({wanted, "training.global_batch_size=3"}, 3),
          "parallelism.gpu_collectives is nccl, which cannot be (rank 0: 2 ranks share a GPU)");
  refused(run({wanted, "run.determinism=layout"}), "has an order of sums, NCCL its own");
  refused(run({wanted, "run.device=cpu"}), "parallelism.gpu_collectives: run.device is cpu here");
  const ProcessResult by_choice = run({"parallelism.gpu_collectives=host"});
  CHECK(by_choice.exit_code == 0);
  CHECK(says(by_choice, "ranks exchange through host memory\n"));
  {
    const Variable old("LLMTRAIN_FAKE_NCCL", "old");
    refused(run({wanted}), "NCCL 2.12.5 is used from 2.13.0 on");
    CHECK(says(run({}), "host memory (rank 0: NCCL 2.12.5 is used from 2.13.0 on)"));
  }
  CHECK(says(run({"run.determinism=layout"}), "(rank 0: run.determinism is layout)"));
  const Variable absent("LLMTRAIN_NCCL", "/no/such/libnccl.so");
  refused(run({wanted}), "/no/such/libnccl.so is not there");
}

TEST_CASE("a rank on a GPU that stops answering ends the others, who know what they wait for" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const Variable gpus("LLMTRAIN_FAKE_GPUS", "2");
  const ProcessResult result = w.run_in_shell(
      2,
      "[ $OMPI_COMM_WORLD_RANK = 1 ] && (until grep -qs loss h/metrics.jsonl; do sleep "
      "0.1; done; kill -STOP $$) &",
      "run.output_dir=h training.max_steps=1000000 run.device=cuda "
      "eval.interval=null checkpoint.interval=null resilience.hang_timeout=2s");
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  CHECK(result.exit_code == 6);
  CHECK(says(result, "no answer within 2 s from ranks 0, 1: #"));
  CHECK(says(result, "last collectives of this rank: #"));
}

TEST_CASE("ranks take the GPUs of their machine in turn" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const Variable gpus("LLMTRAIN_FAKE_GPUS", "2");
  const auto run = [&](const char* directory) {
    return w.run(2, {fmt::format("run.output_dir={}", directory), "run.device=cuda",
                     "training.max_steps=20", "eval.interval=null", "eval.sample_prompts=[]"});
  };
  const ProcessResult two = run("d");
  REQUIRE_MESSAGE(two.exit_code == 0, two.output);
  CHECK(says(two, "device: emulated GPU, 2 for 2 ranks of this machine\n"));
  // Gradients leave there.
  CHECK(says(two, "launches are made one by one in the last micro-batch, where ranks exchange"));
  // Without NCCL a thread of each rank copies what they exchange, unless who waits is ahead of it.
  const Variable absent("LLMTRAIN_NCCL", "/no/such/libnccl.so");
  const ProcessResult by_hosts = run("h");
  REQUIRE_MESSAGE(by_hosts.exit_code == 0, by_hosts.output);
  CHECK(says(by_hosts, "device: emulated GPU, 2 for 2 ranks of this machine\n"));
  CHECK(losses_and_norms(w.scratch / "h") == losses_and_norms(w.scratch / "d"));
}

TEST_CASE("a signal to the ranks on GPUs stops all at one step, saved" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workshop w;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  // They see it at different times, with a step on its way.
  const ProcessResult stopped =
      w.run(2,
            {"run.output_dir=s", "run.device=cuda", "training.max_steps=100000",
             "checkpoint.interval=null", "eval.interval=null"},
            {.limit_seconds = 60, .signal = SIGUSR1, .signal_after = " 3/100000"});
  CAPTURE(stopped.output);
  CHECK(stopped.exit_code == 75);
  CHECK(says(stopped, "stopped by signal"));
  CHECK(std::filesystem::exists(w.scratch / "s" / "checkpoints"));
}

}  // namespace llmtrain::test
