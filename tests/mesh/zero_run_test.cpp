// `llmtrain run` under mpirun with what data ranks divide among them.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("with ZeRO a run has the bits of one without, and each goes on from the other's saves") {
  using Overrides = std::vector<std::string>;
  using Stages = std::pair<int, int>;  // before and after a stop
  const std::vector<Stages> all{{0, 1}, {1, 3}, {3, 2}};
  std::size_t turn = 0;
  for (const Overrides& settings :
       {Overrides{"precision.compute=fp32"},
        {"precision.compute=bf16", "precision.master=fp32"},
        {"precision.compute=bf16", "precision.master=bf16+remainder"},
        {"precision.compute=bf16", "precision.master=none"},
        {"precision.compute=fp32", "optimizer.state_dtype=bf16"},
        {"precision.compute=bf16", "precision.master=none", "optimizer.name=amsgrad",
         "optimizer.state_dtype=bf16"},
        {"precision.compute=bf16", "precision.master=bf16+remainder", "optimizer.name=rmsprop",
         "optimizer.momentum=0.5", "optimizer.state_dtype=bf16"},
        {"precision.compute=bf16", "optimizer.name=muon"},
        {"precision.compute=bf16", "optimizer.name=adagrad",
         "optimizer.initial_accumulator_value=0.1"},
        {"precision.compute=bf16", "optimizer.name=rmsprop", "optimizer.centered=true",
         "optimizer.momentum=0.5"},
        {"precision.compute=bf16", "optimizer.name=amsgrad"},
        {"precision.compute=bf16", "optimizer.name=lion"},
        {"precision.compute=bf16", "optimizer.name=sgd"},
        {"precision.compute=fp32", "optimizer.name=momentum"},
        {"precision.compute=bf16", "optimizer.name=nesterov"},
        {"precision.compute=bf16", "precision.master=bf16+remainder", "optimizer.name=adam"},
        {"precision.compute=fp32", "optimizer.name=adam_mini"},
        {"precision.compute=bf16", "optimizer.name=adafactor"},
        {"precision.compute=fp32", "optimizer.name=came"},
        {"precision.compute=fp32", "optimizer.name=sm3"},
        {"precision.compute=bf16", "optimizer.name=galore", "optimizer.rank=4",
         "optimizer.update_proj_gap=3"},
        {"precision.compute=bf16", "optimizer.name=ldadamw", "optimizer.rank=4"},
        {"precision.compute=bf16", "optimizer.name=q_galore", "optimizer.rank=4",
         "optimizer.update_proj_gap=1", "optimizer.queue_size=2", "optimizer.min_8bit_size=300"},
        {"precision.compute=fp32", "optimizer.name=adamw_8bit", "optimizer.min_8bit_size=300"},
        {"precision.compute=bf16", "precision.master=bf16+remainder", "optimizer.name=adamw_8bit",
         "optimizer.min_8bit_size=0"},
        {"precision.compute=bf16", "precision.master=none", "optimizer.name=lion_8bit",
         "optimizer.min_8bit_size=0"}}) {
    CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
    const Workshop w;
    // One micro-batch on each rank: from stage 2 on gradients of each are summed over the ranks.
    const auto run = [&](std::string_view name, int zero, ProcessEvents events = {}) {
      Overrides overrides = settings;
      overrides.push_back("training.micro_batch_size=2");
      overrides.push_back(fmt::format("run.output_dir={}", name));
      overrides.push_back(fmt::format("parallelism.zero={}", zero));
      events.limit_seconds = 60;
      return w.run(2, overrides, events);
    };
    const ProcessResult plain = run("plain", 0);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
    const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
    const Stages one = all[turn++ % all.size()];
    for (const auto& [from, to] : is_quick() ? std::vector<Stages>{one} : all) {
      const std::string name = fmt::format("from-{}", from);
      REQUIRE(run(name, from, stop).exit_code != 0);
      const ProcessResult rest = run(name, to);
      REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
      CHECK(rest.output.find("resumed from step") != std::string::npos);
      CHECK(losses_and_norms(w.scratch / name) == losses_and_norms(w.scratch / "plain"));
    }
  }
}

namespace {

using Settings = std::vector<std::string>;

/// What four ranks with this layout have saved goes on on one rank, and the other way round;
/// numbers differ by so much of them.
void check_going_on(const Settings& layout, const Settings& of_both, double bound = 1e-10) {
  const Workshop w;
  const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
  const auto run = [&](int ranks, std::string_view name, ProcessEvents events = {}) {
    Settings all = of_both;
    all.push_back(fmt::format("run.output_dir={}", name));
    if (ranks > 1) all.insert(all.end(), layout.begin(), layout.end());
    return w.run(ranks, all, events);
  };
  REQUIRE(run(1, "one").exit_code == 0);
  const auto numbers = losses_and_norms(w.scratch / "one");
  REQUIRE(run(4, "from-four", stop).exit_code != 0);
  REQUIRE(run(1, "from-four").exit_code == 0);
  REQUIRE(run(1, "from-one", stop).exit_code != 0);
  REQUIRE(run(4, "from-one").exit_code == 0);
  for (const char* name : {"from-four", "from-one"}) {
    const auto others = losses_and_norms(w.scratch / name);
    REQUIRE(others.size() == numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      CHECK(std::abs(others[i] - numbers[i]) <= bound * numbers[i]);
    }
  }
}

}  // namespace

TEST_CASE("what replicas of slices have saved goes on on one rank, and the other way round") {
  check_going_on({"parallelism.zero=3", "parallelism.dp_replicate=2"}, {});
}

// Where FP32 gradients of layouts differ by a rounding, a state may be rounded to another bf16.
TEST_CASE("bf16 states, of which ranks have parts, go on on one rank, and the other way round") {
  for (const Settings& layout : {Settings{"parallelism.tp=2", "parallelism.zero=1"},
                                 {"parallelism.tp=2", "parallelism.pp=2"}}) {
    check_going_on(layout,
                   {"precision.compute=fp32", "optimizer.state_dtype=bf16", "optimizer.lr=5e-3"},
                   1e-3);
  }
}

TEST_CASE(
    "states of blocks, of which ranks have parts, go on on one rank, and the other way round") {
  // CAME's first steps are a hundred times its rate: at a larger one they carry rounding far.
  for (const Settings& settings :
       {Settings{"optimizer.name=adam_mini"},
        {"optimizer.name=adafactor"},
        {"optimizer.name=came", "optimizer.lr=1e-5"},
        {"optimizer.name=sm3"},
        {"optimizer.name=galore", "optimizer.rank=4", "optimizer.update_proj_gap=3"},
        {"optimizer.name=ldadamw", "optimizer.rank=4", "optimizer.eps=1e-6"},
        {"optimizer.name=q_galore", "optimizer.rank=4", "optimizer.update_proj_gap=1",
         "optimizer.queue_size=2", "optimizer.eps=1e-6", "optimizer.min_8bit_size=256",
         "model.head_dim=256", "model.intermediate_size=512"},
        {"optimizer.name=adamw_8bit", "optimizer.min_8bit_size=256", "model.head_dim=256",
         "model.intermediate_size=512"},
        {"optimizer.name=lion_8bit", "optimizer.min_8bit_size=256", "model.head_dim=256",
         "model.intermediate_size=512"}}) {
    CAPTURE(settings.front());
    check_going_on({"parallelism.tp=2", "parallelism.zero=1"}, settings);
  }
}

}  // namespace llmtrain::test
