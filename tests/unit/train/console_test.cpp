#include "lib/train/console.hpp"

#include <cmath>

#include <doctest/doctest.h>

namespace llmtrain::train {

namespace {

StepRecord full_record() {
  StepRecord record{.step = 120, .fields = {}};
  record.set(metric::kLoss, 3.14159);
  record.set(metric::kGradNorm, 0.5);
  record.set(metric::kLearningRate, 3e-4);
  record.set(metric::kTokensPerSecond, 12345.0);
  record.set(metric::kMfu, 0.468);
  record.set(metric::kPeakBytes, std::int64_t{3} << 29);
  record.set(metric::kEtaSeconds, 7380.0);
  return record;
}

/// Runs `use` on a console over a temporary file and returns what it wrote.
template <class Use>
std::string written(bool progress_bar, Use use) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    Console console({.out = file,
                     .progress_bar = progress_bar,
                     .total_steps = 200,
                     .mfu_formula = "6 N FLOP per token / peak"});
    use(console);
  }
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("a step line shows every quantity right-aligned under its title") {
  CHECK(step_titles(2000) ==
        "     step       loss  grad-norm         lr  tokens/s     MFU      memory       ETA");
  CHECK(step_line(full_record(), 2000) ==
        " 120/2000     3.1416     0.5000  3.000e-04    12.35k   46.8%    1.50 GiB    2h 03m");
}

TEST_CASE("absent and extreme values keep the columns") {
  StepRecord record{.step = 1, .fields = {}};
  record.set(metric::kLoss, std::nan(""));
  record.set(metric::kGradNorm, 1.5e30);
  record.set(metric::kTokensPerSecond, INFINITY);

  const std::string line = step_line(record, 0);

  CHECK(line.size() == step_titles(0).size());
  CHECK(line == "      1        nan  1.500e+30          -       inf       -           -         -");
}

TEST_CASE("the evaluation line stands under the loss column") {
  StepRecord record{.step = 100, .fields = {}};
  record.set(metric::kEvalLoss, 1.25);
  record.set(metric::kEvalBitsPerByte, 1.80337);

  CHECK(eval_line(record, 2000) == " 100/2000     1.2500  evaluation, 1.8034 bits per byte");
}

TEST_CASE("the progress bar fills its width, reaches 100% only at the end and survives bad input") {
  CHECK(progress_bar(0.5, "step 5/10", 30) == "[######......]  50%  step 5/10");
  CHECK(progress_bar(0.999, "", 40).find(" 99%") != std::string::npos);
  CHECK(progress_bar(7.0, "", 40).find("100%") != std::string::npos);
  CHECK(progress_bar(std::nan(""), "", 40).find("  0%") != std::string::npos);
  for (int width = 0; width < 200; ++width) {
    CHECK(progress_bar(0.3, "step 3/10", width).size() <= static_cast<std::size_t>(width));
  }
}

TEST_CASE("a file receives whole lines only, the formula and the titles once") {
  const std::string text = written(false, [](Console& console) {
    console.header();
    console.progress(0.1, "step 1");
    console.record(full_record());
    console.message("saved");
  });

  CHECK(text == "MFU = 6 N FLOP per token / peak\n" + step_titles(200) + "\n" +
                    step_line(full_record(), 200) + "\nsaved\n");
}

TEST_CASE("on a terminal the bar steps aside for lines and is gone at the end") {
  const std::string text = written(true, [](Console& console) {
    console.progress(0.25, "step 1");
    console.progress(0.25, "step 1");  // no change, no output
    console.message("saved");
  });

  const std::string clear = "\r\x1b[2K";
  const std::string bar = progress_bar(0.25, "step 1", 79);
  CHECK(text == clear + bar + clear + "saved\n" + clear + bar + clear);
}

}  // namespace llmtrain::train
