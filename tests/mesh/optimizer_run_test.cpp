// `llmtrain run` under mpirun with every optimizer, whose states lie on the ranks in every way.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

using Settings = std::vector<std::string>;

/// Parts of matrices that cut no block of 256 codes.
Settings with_wide_parts(Settings settings) {
  settings.insert(settings.end(), {"model.head_dim=256", "model.intermediate_size=512"});
  return settings;
}

// Some of these carry rounding far at the recipe's rate: their first steps are many times as long.
const std::vector<Settings> kOptimizers{
    {"optimizer.name=sgd"},
    {"optimizer.name=momentum"},
    {"optimizer.name=nesterov"},
    {"optimizer.name=adagrad"},
    {"optimizer.name=rmsprop", "optimizer.lr=1e-3"},
    {"optimizer.name=adam"},
    {"optimizer.name=adamw"},
    {"optimizer.name=amsgrad"},
    {"optimizer.name=lion", "optimizer.lr=1e-3"},
    {"optimizer.name=adam_mini"},
    {"optimizer.name=adafactor"},
    {"optimizer.name=came", "optimizer.lr=1e-5"},
    {"optimizer.name=sm3"},
    {"optimizer.name=muon"},
    {"optimizer.name=galore", "optimizer.rank=4", "optimizer.update_proj_gap=3"},
    {"optimizer.name=ldadamw", "optimizer.rank=4", "optimizer.eps=1e-6"},
    with_wide_parts({"optimizer.name=q_galore", "optimizer.rank=4", "optimizer.update_proj_gap=1",
                     "optimizer.queue_size=2", "optimizer.eps=1e-6",
                     "optimizer.min_8bit_size=256"}),
    with_wide_parts({"optimizer.name=adamw_8bit", "optimizer.min_8bit_size=256"}),
    with_wide_parts({"optimizer.name=lion_8bit", "optimizer.min_8bit_size=256"})};

const std::vector<std::string> kLayouts{"parallelism.zero=1", "parallelism.tp=2",
                                        "parallelism.zero=2", "parallelism.pp=2",
                                        "parallelism.zero=3"};

}  // namespace

TEST_CASE("every optimizer, divided by ZeRO, tp and pp in turn, is the whole one") {
  std::size_t turn = 0;
  for (const Settings& settings : kOptimizers) {
    CAPTURE(settings.front());
    const Workshop w;
    const auto run = [&](int ranks, const std::string& name, const std::string& layout,
                         std::size_t steps) {
      Settings all = settings;
      all.insert(all.end(),
                 {"run.output_dir=" + name, layout, "eval.interval=2",
                  fmt::format("training.max_steps={}", steps), "lr_scheduler.type=constant"});
      const ProcessResult result = w.run(ranks, all);
      REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    };
    const std::size_t begin = turn++, parts = is_quick() ? 2 : kLayouts.size();
    run(1, "whole", "parallelism.tp=1", 2 * parts);
    for (std::size_t i = 0; i < parts; ++i) {  // each goes on where the one before has stopped
      run(2, "divided", kLayouts[(begin + i) % kLayouts.size()], 2 * (i + 1));
    }
    const std::vector<double> expected = losses_and_norms(w.scratch / "whole"),
                              numbers = losses_and_norms(w.scratch / "divided");
    REQUIRE(numbers.size() == expected.size());
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      CAPTURE(n);
      CHECK(std::abs(numbers[n] - expected[n]) <= 1e-10 * expected[n]);
    }
  }
}

}  // namespace llmtrain::test
