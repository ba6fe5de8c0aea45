// `llmtrain run` under mpirun: what one user sees of several ranks.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <tuple>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/safetensors.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("ranks of mpirun train one run, which one rank writes and any number goes on with") {
  const Workshop w;
  const ProcessResult one = w.run(1, {"run.output_dir=one"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const ProcessResult two = w.run(2, {"run.output_dir=two"});
  REQUIRE_MESSAGE(two.exit_code == 0, two.output);
  for (const std::string_view key : {train::metric::kLoss, train::metric::kEvalLoss}) {
    const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", key);
    CHECK(std::abs(last_loss(w.scratch / "two" / "metrics.jsonl", key) - expected) <=
          1e-11 * expected);
  }
  CHECK(w.records("two").size() == w.records("one").size());
  CHECK(two.output.find("12 steps took memory as planned") != std::string::npos);
  // Each line once, whatever the number of ranks.
  const std::size_t saved = two.output.find("saved two/checkpoints/step-00000012");
  REQUIRE(saved != std::string::npos);
  CHECK(two.output.find("saved two/checkpoints/step-00000012", saved + 1) == std::string::npos);

  // Two ranks begin, four end; and one ends what two began.
  REQUIRE(w.run(2, {"run.output_dir=on", "training.max_steps=12", "checkpoint.interval=4"},
                {.signal = SIGTERM, .signal_after = "step-00000004"})
              .exit_code != 0);
  const ProcessResult four = w.run(4, {"run.output_dir=on"});
  REQUIRE_MESSAGE(four.exit_code == 0, four.output);
  CHECK(four.output.find("resumed from step") != std::string::npos);
  const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", train::metric::kLoss);
  CHECK(std::abs(last_loss(w.scratch / "on" / "metrics.jsonl", train::metric::kLoss) - expected) <=
        1e-11 * expected);
}

TEST_CASE("ranks that share a model train, decode and save what one rank does, for any layout") {
  for (const std::string_view share :
       {"parallelism.tp=2", "parallelism.pp=2", "parallelism={pp: 2, pp_schedule: zbv}",
        "parallelism={pp: 2, pp_schedule: interleaved_1f1b, pp_stages_per_rank: 2}",
        "parallelism.sp=2", "parallelism={sp: 2, sp_algo: ring}"}) {
    CAPTURE(share);
    const Workshop w;
    const std::vector<std::string> common{"model.num_hidden_layers=4"};
    const auto run = [&](int ranks, std::string_view name, std::vector<std::string> overrides,
                         ProcessEvents events = {}) {
      overrides.push_back(fmt::format("run.output_dir={}", name));
      overrides.insert(overrides.end(), common.begin(), common.end());
      return w.run(ranks, overrides, events);
    };
    const std::string layout(share);
    const ProcessResult one = run(1, "one", {});
    REQUIRE_MESSAGE(one.exit_code == 0, one.output);
    const ProcessResult shared = run(2, "shared", {layout});
    REQUIRE_MESSAGE(shared.exit_code == 0, shared.output);
    CHECK(shared.output.find("12 steps took memory as planned") != std::string::npos);
    for (const std::string_view key : {train::metric::kLoss, train::metric::kEvalLoss}) {
      const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", key);
      CHECK(std::abs(last_loss(w.scratch / "shared" / "metrics.jsonl", key) - expected) <=
            1e-11 * expected);
    }
    const auto samples = [&](std::string_view name) {
      return read_file(w.scratch.path() / name / "samples.jsonl");
    };
    CHECK(!samples("one").empty());
    CHECK(samples("shared") == samples("one"));

    // Two ranks share the model until they are stopped; four, two by two, go on; and then one.
    REQUIRE(
        run(2, "on", {layout}, {.signal = SIGTERM, .signal_after = "step-00000004"}).exit_code !=
        0);
    const ProcessResult four = run(4, "on", {layout, "parallelism.dp=2"});
    REQUIRE_MESSAGE(four.exit_code == 0, four.output);
    CHECK(four.output.find("resumed from step") != std::string::npos);
    const ProcessResult last = run(1, "on", {"training.max_steps=16"});
    const ProcessResult straight = run(1, "one", {"training.max_steps=16"});
    REQUIRE_MESSAGE(last.exit_code == 0, last.output);
    REQUIRE_MESSAGE(straight.exit_code == 0, straight.output);
    const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", train::metric::kLoss);
    CHECK(std::abs(last_loss(w.scratch / "on" / "metrics.jsonl", train::metric::kLoss) -
                   expected) <= 1e-11 * expected);
  }
}

TEST_CASE("stages evaluate several samples at a time, whatever ranks have them, and drop nothing") {
  const Workshop w;
  const auto eval_loss = [&](int ranks, const std::string& name, const std::string& layout) {
    // 22 micro-batches, the last one of one sample.
    const ProcessResult result =
        w.run(ranks, {"run.output_dir=" + name, layout, "model.num_hidden_layers=4",
                      "model.attention_dropout=0.3", "training.max_steps=1",
                      "training.global_batch_size=12", "training.micro_batch_size=3",
                      "eval.interval=1", "eval.max_samples=64"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return last_loss(w.scratch / name / "metrics.jsonl", train::metric::kEvalLoss);
  };
  const double expected = eval_loss(1, "one", "parallelism.pp=1");
  REQUIRE(expected > 0);
  int number = 0;
  for (const std::string layout :
       {"parallelism.pp=2", "parallelism={pp: 2, pp_schedule: zbv}",
        "parallelism={pp: 2, pp_schedule: interleaved_1f1b, pp_stages_per_rank: 2}",
        "parallelism={pp: 2, tp: 2, tp_sequence_parallel: true, pp_schedule: dualpipev}"}) {
    CAPTURE(layout);
    const int ranks = layout.find("tp: 2") == std::string::npos ? 2 : 4;
    const double found = eval_loss(ranks, fmt::format("shared-{}", number++), layout);
    CHECK(std::abs(found - expected) <= 1e-11 * expected);
  }
}

// A model with experts, on every axis that divides its parameters.
TEST_CASE("experts are trained, sampled, saved and exported by ranks that share them as by one") {
  using Overrides = std::vector<std::string>;
  const Workshop w;
  const std::string model =
      "model={architecture: qwen3_moe, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 12, num_experts: 4, "
      "num_experts_per_tok: 2, max_position_embeddings: 64";
  const auto run = [&](int ranks, std::string_view name, std::string_view more,
                       const Overrides& overrides) {
    Overrides all{fmt::format("{}{}}}", model, more), fmt::format("run.output_dir={}", name)};
    if (ranks > 1) all.push_back("parallelism={dp: 2, tp: 2, pp: 2, ep: 2}");
    all.insert(all.end(), overrides.begin(), overrides.end());
    const ProcessResult result = w.run(ranks, all);
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  };
  const auto exported = [&](std::string_view name) {
    const std::string to = fmt::format("{}-hf", name);
    const ProcessResult result =
        run_process({LLMTRAIN_EXECUTABLE, "ckpt", "export", std::string(name), to},
                    w.scratch.path().string(), {.limit_seconds = 60});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return read_file(w.scratch / to / "model.safetensors") +
           read_file(w.scratch / to / "config.json");
  };
  run(1, "one", "", {});
  run(8, "eight", "", {});
  const std::vector<double> expected = losses_and_norms(w.scratch / "one");
  const std::vector<double> found = losses_and_norms(w.scratch / "eight");
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(std::abs(found[i] - expected[i]) <= 1e-11 * expected[i]);
  }
  // Loads of experts are those of all ranks; what a router's choices cost is at least that of even
  // ones, num_experts_per_tok.
  const auto loads = [&](const std::string& name) {
    std::vector<std::string> texts;
    for (const auto& record : train::read_metrics(w.scratch / name / "metrics.jsonl")) {
      const auto* load = record.find("experts/load/1");
      if (load == nullptr) continue;
      texts.push_back(std::get<std::string>(*load));
      CHECK(record.number("experts/max_load").value() >= 1);
      CHECK(record.number("experts/balance_loss").value() > 1.9);
      CHECK(record.number("experts/z_loss").value() > 0);
    }
    return texts;
  };
  CHECK(loads("one").size() == 12);
  CHECK(loads("eight") == loads("one"));
  // What eight have trained, loaded by one and by eight, is the same again.
  const std::string bytes = exported("eight");
  const Overrides stay{"training.max_steps=1", "optimizer.lr=0", "run.seed=9"};
  run(1, "again-one", ", init_from: eight-hf", stay);
  run(8, "again-eight", ", init_from: eight-hf", stay);
  CHECK(exported("again-one") == bytes);
  CHECK(exported("again-eight") == bytes);
  // One goes on where eight stopped.
  Overrides longer{"training.max_steps=14"};
  run(8, "eight", "", longer);
  run(1, "one", "", longer);
  CHECK(w.records("eight").size() == w.records("one").size());
}

// They follow counts over all ranks, and are on every rank of a stage.
TEST_CASE("biases of routers go on where another layout saved them") {
  const Workshop w;
  const std::string model =
      "model={architecture: dots1, vocab_size: 300, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 12, "
      "n_routed_experts: 6, num_experts_per_tok: 2, n_group: 3, topk_group: 2, "
      "n_shared_experts: 1, max_position_embeddings: 64, bias_update_speed: 0.05}";
  const auto with = [&](std::string_view name, std::string parallelism) {
    std::vector<std::string> overrides{model, fmt::format("run.output_dir={}", name)};
    if (!parallelism.empty()) overrides.push_back("parallelism=" + parallelism);
    return overrides;
  };
  const auto biases = [&](std::string_view name) {
    const std::string to = fmt::format("{}-hf", name);
    const ProcessResult result =
        run_process({LLMTRAIN_EXECUTABLE, "ckpt", "export", std::string(name), to},
                    w.scratch.path().string(), {.limit_seconds = 60});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    const auto file = checkpoint::SafetensorsFile::open(w.scratch / to / "model.safetensors");
    std::vector<float> values;
    for (const int layer : {1, 2}) {
      std::vector<float> bias(6);
      file.read_tensor(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer),
                       std::as_writable_bytes(std::span(bias)));
      values.insert(values.end(), bias.begin(), bias.end());
    }
    return values;
  };
  const ProcessResult one = w.run(1, with("one", ""));
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const std::vector<double> expected = losses_and_norms(w.scratch / "one");
  const std::vector<float> moved = biases("one");
  CHECK(std::ranges::count(moved, 0.0f) < 6);
  const std::string eight = "{dp: 2, tp: 2, pp: 2, ep: 2, zero: 1}", two = "{dp: 2, zero: 3}";
  const ProcessEvents stop{.limit_seconds = 90, .signal = SIGTERM, .signal_after = "step-00000004"};
  for (const auto& [from, of, to, on] :
       {std::tuple(8, eight, 1, std::string()), std::tuple(1, std::string(), 2, two)}) {
    const std::string name = fmt::format("from-{}", from);
    REQUIRE(w.run(from, with(name, of), stop).exit_code != 0);
    const ProcessResult rest = w.run(to, with(name, on));
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(rest.output.find("resumed from step") != std::string::npos);
    const std::vector<double> found = losses_and_norms(w.scratch / name);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(std::abs(found[i] - expected[i]) <= 1e-11 * expected[i]);
    }
    CHECK(biases(name) == moved);
  }
}

TEST_CASE("with ZeRO a run has the bits of one without, and each goes on from the other's saves") {
  using Overrides = std::vector<std::string>;
  for (const Overrides& settings : {Overrides{"precision.compute=fp32"},
                                    {"precision.compute=bf16", "precision.master=fp32"},
                                    {"precision.compute=bf16", "precision.master=bf16+remainder"},
                                    {"precision.compute=bf16", "precision.master=none"},
                                    {"precision.compute=bf16", "optimizer.name=muon"}}) {
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
    for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 3), std::pair(3, 2)}) {
      const std::string name = fmt::format("from-{}", from);
      REQUIRE(run(name, from, stop).exit_code != 0);
      const ProcessResult rest = run(name, to);
      REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
      CHECK(rest.output.find("resumed from step") != std::string::npos);
      CHECK(losses_and_norms(w.scratch / name) == losses_and_norms(w.scratch / "plain"));
    }
  }
}

TEST_CASE("what replicas of slices have saved goes on on one rank, and the other way round") {
  const Workshop w;
  const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
  REQUIRE(w.run(1, {"run.output_dir=one"}).exit_code == 0);
  const auto numbers = losses_and_norms(w.scratch / "one");
  const auto four = [&](std::string_view name, ProcessEvents events) {
    return w.run(4,
                 {fmt::format("run.output_dir={}", name), "parallelism.zero=3",
                  "parallelism.dp_replicate=2"},
                 events);
  };
  REQUIRE(four("from-four", stop).exit_code != 0);
  REQUIRE(w.run(1, {"run.output_dir=from-four"}).exit_code == 0);
  REQUIRE(w.run(1, {"run.output_dir=from-one"}, stop).exit_code != 0);
  REQUIRE(four("from-one", {}).exit_code == 0);
  for (const char* name : {"from-four", "from-one"}) {
    const auto others = losses_and_norms(w.scratch / name);
    REQUIRE(others.size() == numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      CHECK(std::abs(others[i] - numbers[i]) <= 1e-10 * numbers[i]);
    }
  }
}

TEST_CASE("a signal to one rank stops all at one step, saved") {
  const Workshop w;
  // mpirun hands SIGUSR1 to every rank, which they see at different times.
  const ProcessResult stopped =
      w.run(3,
            {"run.output_dir=s", "training.global_batch_size=3", "training.max_steps=100000",
             "checkpoint.interval=null", "eval.interval=null"},
            {.signal = SIGUSR1, .signal_after = "  20/100000"});
  CAPTURE(stopped.output);
  CHECK(stopped.exit_code == 75);
  CHECK(stopped.output.find("stopped by signal") != std::string::npos);
  CHECK(std::filesystem::exists(w.scratch / "s" / "checkpoints"));
}

TEST_CASE("a layout that does not fit the job is refused once, with what fits") {
  const Workshop w;
  const auto refused = [&](int ranks, const std::vector<std::string>& overrides, int exit_code,
                           std::string_view text) {
    const ProcessResult result = w.run(ranks, overrides);
    CAPTURE(result.output);
    CHECK(result.exit_code == exit_code);
    const std::size_t at = result.output.find(text);
    CHECK(at != std::string::npos);
    CHECK(result.output.find(text, at + 1) == std::string::npos);
    CHECK(!result.timed_out);
  };
  refused(2, {"parallelism.dp=4"}, 2, "parallelism.dp is 4, but the job has 2 ranks; start 4");
  refused(1, {"parallelism.dp=4"}, 2, "but the job has 1 rank; start 4");
  refused(3, {}, 2, "which 3 ranks cannot share in micro-batches of 1; 3 and 6 divide");
  refused(3, {"parallelism.tp=2"}, 2, "parallelism.tp 2 does not divide the job's 3");
  refused(3, {"parallelism={dp: 2, tp: -1}"}, 2, "parallelism.dp 2 does not divide the job's 3");
  refused(2, {"parallelism.tp=-1"}, 2, "and so does parallelism.dp: -1 (its default)");
  refused(4, {"parallelism={dp: 1, pp: -1}"}, 2, "4 stages of a pipeline need a block each");
  refused(2, {"parallelism.dp=2", "parallelism.tp=2"}, 2, "with parallelism.tp 2, but the job has");
  refused(4, {"parallelism.tp=4"}, 2, "cannot share 2 heads and 2 key/value heads evenly; 2 can");
  refused(2, {"parallelism.tp=2", "model.intermediate_size=33"}, 2, "1 and 3 do");
  refused(2, {"parallelism.order=[tp, tp, dp, pp]"}, 2, "names an axis twice");
  refused(2, {"parallelism.zero=1", "parallelism.dp_replicate=3"}, 2,
          "does not divide the 2 ranks");
  refused(2, {"parallelism.sp=2", "training.seq_len=14"}, 2, "12 and 16 do");
  refused(3, {"parallelism={sp: 3, sp_algo: ulysses}", "training.seq_len=15"}, 2,
          "cannot share 2 heads and 2 key/value heads; parallelism.sp_algo: all_gather can");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 3}"}, 2, "does not divide parallelism.sp 4");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 4}"}, 2, "set sp_algo: ulysses, and leave this");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 2, sp_algo: ulysses}"}, 2, "does nothing");
  refused(3, {"parallelism.pp=2"}, 2, "parallelism.pp 2 does not divide the job's 3");
  refused(2,
          {"parallelism={pp: 2, pp_schedule: dualpipev}", "model.num_hidden_layers=4",
           "training.global_batch_size=2"},
          2, "dualpipev does not take 2 micro-batches on 2 ranks; take 4");
  refused(4, {"parallelism.pp=4"}, 2, "4 stages of a pipeline need a block each");
  refused(2, {"parallelism.pp=2", "parallelism.pp_layers=[2,1]"}, 2,
          "3 blocks, and the model has 2");
  refused(2, {"parallelism.pp_schedule=zbv"}, 2, "does nothing: parallelism.pp is 1");
  refused(2, {"parallelism.pp=2", "parallelism.pp_stages_per_rank=2"}, 2,
          "does nothing: 1f1b has 1 on every rank");
  refused(2, {"parallelism.ep=2"}, 2, "has nothing to share: the model has no experts");
  const std::string experts = "model.architecture=mixtral";
  refused(2, {experts, "model.num_local_experts=3", "parallelism.ep=2"}, 2, "1 and 3 do");
  refused(2, {experts, "parallelism={ep: 4}"}, 2, "does not divide the 2 ranks of dp x sp");
  refused(2, {experts, "parallelism={ep_room: 2}"}, 2, "does nothing: parallelism.ep is 1");
  refused(2, {"training.seq_leng=3"}, 2, "training.seq_leng");
}

TEST_CASE("a rank whose experts have no room for what comes ends the run and says so") {
  const Workshop w;
  const ProcessResult full =
      w.run(2, {"model.architecture=mixtral", "parallelism={ep: 2, ep_room: 1}"});
  CAPTURE(full.output);
  CHECK(full.exit_code == 3);
  CHECK(full.output.find("times their even share, with parallelism.ep_room 1; raise it") !=
        std::string::npos);
}

TEST_CASE("ranks with different recipes are told apart at the start") {
  const Workshop w;
  // Both halves of the job have an override of their own.
  std::vector<std::string> command = mpirun(1);
  command.insert(command.end(),
                 {LLMTRAIN_EXECUTABLE, "run", "r.yaml", "run.output_dir=d", ":", "-n", "1",
                  LLMTRAIN_EXECUTABLE, "run", "r.yaml", "run.output_dir=d", "optimizer.lr=1e-3"});
  const ProcessResult result =
      run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
  CAPTURE(result.output);
  CHECK(result.exit_code == 6);
  CHECK(result.output.find("rank 1 has another recipe than rank 0") != std::string::npos);
}

TEST_CASE("a rank that stops answering is named by the others, who end") {
  const Workshop w;
  std::vector<std::string> command = mpirun(3);
  command.insert(
      command.end(),
      {"/bin/sh", "-c",
       fmt::format("[ $OMPI_COMM_WORLD_RANK = 2 ] && (sleep 3; kill -STOP $$) & exec {} run r.yaml "
                   "run.output_dir=h training.max_steps=1000000 training.global_batch_size=3 "
                   "eval.interval=null resilience.hang_timeout=2s",
                   LLMTRAIN_EXECUTABLE)});
  const ProcessResult result =
      run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  CHECK(result.exit_code == 6);
  CHECK(result.output.find("no answer within 2 s from rank 2: #") != std::string::npos);
  CHECK(result.output.find("last collectives of this rank: #") != std::string::npos);
}

TEST_CASE("ranks that compare their calls train as those that do not") {
  const Workshop w;
  REQUIRE(w.run(2, {"run.output_dir=plain"}).exit_code == 0);
  const ProcessResult checked =
      w.run(2, {"run.output_dir=checked", "debug.check_collectives=true"});
  REQUIRE_MESSAGE(checked.exit_code == 0, checked.output);
  CHECK(w.records("checked") == w.records("plain"));
}

TEST_CASE("a rank that dies ends the others") {
  const Workshop w;
  std::vector<std::string> command = mpirun(2);
  // The second rank is killed by its own limit of processor time while the first goes on.
  command.insert(command.end(),
                 {"/bin/sh", "-c",
                  fmt::format("[ $OMPI_COMM_WORLD_RANK = 1 ] && ulimit -t 2; exec {} run r.yaml "
                              "run.output_dir=k training.max_steps=1000000 eval.interval=null",
                              LLMTRAIN_EXECUTABLE)});
  const ProcessResult result =
      run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
}

}  // namespace llmtrain::test
