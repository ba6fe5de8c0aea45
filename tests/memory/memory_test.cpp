// Plan equals run, in memory: every row is a process of its own, watched by memory_probe.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain {

namespace {

// The row of six GiB computes for more than four minutes on two slow cores.
constexpr double kHangSeconds = 900;

test::ProcessResult probe(std::vector<std::string> arguments) {
  const test::TempDir directory;
  arguments.insert(arguments.begin(), MEMORY_PROBE);
  return test::run_process(arguments, directory.path(), {.limit_seconds = kHangSeconds});
}

// A run in which the probe finds nothing. Its figures are the last line of its output.
void check_row(const std::string& title, const std::vector<std::string>& arguments) {
  const test::ProcessResult result = probe(arguments);
  const std::size_t end = result.output.find_last_not_of('\n') + 1;
  const std::size_t begin = end == 0 ? 0 : result.output.rfind('\n', end - 1) + 1;
  fmt::print("{:<28} {}\n", title, result.output.substr(begin, end - begin));
  INFO(title << ": " << result.output);
  CHECK(result.exit_code == 0);
  CHECK_FALSE(result.timed_out);
}

// A run with a fault, which the probe must find and name.
void check_fault(const std::vector<std::string>& arguments, const std::string& finding) {
  const test::ProcessResult result = probe(arguments);
  INFO(result.output);
  CHECK(result.exit_code == 1);
  CHECK(result.output.find(finding) != std::string::npos);
}

const std::string kSelective = "activation_checkpoint.ops=[norm, activation, attention, up_proj]";

}  // namespace

TEST_CASE("the probe sees every way to take a block") {
  const test::ProcessResult result = probe({"itself"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
}

TEST_CASE("a step's memory is the plan's: families x recompute x dtype, accumulation") {
  bool accumulates = false;
  for (const std::string family : {"gpt2", "llama"}) {
    for (const std::string mode : {"none", "full", "sqrt", "selective", "budget"}) {
      for (const std::string dtype : {"fp32", "bf16"}) {
        std::vector<std::string> arguments{
            "steps", family, "activation_checkpoint.mode=" + mode, "precision.compute=" + dtype,
            fmt::format("training.global_batch_size={}", accumulates ? 4 : 2)};
        if (mode == "selective") arguments.push_back(kSelective);
        if (mode == "budget") arguments.push_back("activation_checkpoint.budget=0.75");
        check_row(fmt::format("{} {} {}{}", family, mode, dtype, accumulates ? " x2" : ""),
                  arguments);
        accumulates = !accumulates;
      }
      accumulates = !accumulates;
    }
    accumulates = !accumulates;
  }
}

TEST_CASE("a step's memory is the plan's: masters as remainders, every optimizer with a state") {
  for (const std::string optimizer : {"adamw", "momentum", "muon", "nesterov", "adagrad", "rmsprop",
                                      "amsgrad", "lion", "adam_mini", "adafactor", "came", "sm3",
                                      "galore", "ldadamw", "q_galore", "adamw_8bit", "lion_8bit"}) {
    check_row("llama remainder " + optimizer,
              {"steps", "llama", "precision.compute=bf16", "precision.master=bf16+remainder",
               "optimizer.name=" + optimizer});
  }
}

TEST_CASE("a step's memory is the plan's: 1 GiB and 6 GiB") {
  check_row("gpt2 full bf16 x2, 1 GiB",
            {"steps", "gpt2", "--steps=2", "--at-least=1GiB", "activation_checkpoint.mode=full",
             "precision.compute=bf16", "model.vocab_size=32768", "model.hidden_size=1024",
             "training.seq_len=16", "training.micro_batch_size=1", "training.global_batch_size=2"});
  check_row(
      "llama selective bf16, 1 GiB",
      {"steps", "llama", "--steps=2", "--at-least=1GiB", "activation_checkpoint.mode=selective",
       kSelective, "precision.compute=bf16", "model.vocab_size=32768", "model.hidden_size=1024",
       "training.seq_len=16", "training.micro_batch_size=1", "training.global_batch_size=1"});
  check_row(
      "llama none fp32, 1 GiB",
      {"steps", "llama", "--steps=2", "--at-least=1GiB", "model.hidden_size=64",
       "model.num_attention_heads=2", "model.intermediate_size=8192", "model.num_hidden_layers=5",
       "training.micro_batch_size=16", "training.global_batch_size=16"});
  check_row("llama sqrt fp32, 6 GiB",
            {"steps", "llama", "--steps=2", "--at-least=6GiB", "activation_checkpoint.mode=sqrt",
             "model.hidden_size=64", "model.num_attention_heads=2", "model.intermediate_size=40960",
             "model.num_hidden_layers=16", "training.micro_batch_size=16",
             "training.global_batch_size=16"});
}

TEST_CASE("the training loop takes no large block in a step nor between steps") {
  check_row("the loop", {"loop"});
}

TEST_CASE("memory beside the ledger, or beside the plan, is found") {
  check_fault({"steps", "llama", "--fault=hidden_vector"}, "step 2: outside the ledger 1048576 B");
  check_fault({"steps", "llama", "--fault=extra_tensor"},
              "step 1: allocations differ from the plan's at line 1: take workspace extra 65536 B");
  check_fault({"steps", "llama", "--fault=kept_block"}, "more than planned");
  check_fault({"loop", "--fault=hidden_vector"}, "in step 2: outside the ledger 1048576 B");
}

}  // namespace llmtrain
