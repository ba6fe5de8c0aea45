// `llmtrain run` under mpirun of models with experts.
#include <algorithm>
#include <csignal>
#include <tuple>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/safetensors.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("experts are trained, sampled, saved and exported by ranks that share them as by one") {
  using Overrides = std::vector<std::string>;
  const Workshop w;
  const std::string model =
      "model={architecture: qwen3_moe, vocab_size: 301, hidden_size: 16, num_hidden_layers: 2, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 12, num_experts: 4, "
      "num_experts_per_tok: 2, max_position_embeddings: 64";
  const auto run = [&](int ranks, std::string_view name, std::string_view more,
                       const Overrides& overrides) {
    Overrides all{fmt::format("{}{}}}", model, more), fmt::format("run.output_dir={}", name)};
    if (ranks > 1) {
      all.push_back("parallelism={dp: 2, tp: 2, pp: 2, ep: 2}");
      all.push_back("debug.check_collectives=true");  // parts that differ by rank are no mistake
    }
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
  // One goes on with what eight saved, changes nothing and exports it.
  std::filesystem::copy(w.scratch / "eight", w.scratch / "taken-over",
                        std::filesystem::copy_options::recursive);
  run(1, "taken-over", "", {"training.max_steps=13", "optimizer.lr=0"});
  CHECK(w.records("taken-over").size() > w.records("eight").size());
  CHECK(exported("taken-over") == bytes);
}

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

TEST_CASE("rows that find no room on their way to experts end the run, which says so") {
  const Workshop w;
  const ProcessResult full =
      w.run(2, {"model.architecture=mixtral", "parallelism={ep: 2, ep_room: 1}"});
  CAPTURE(full.output);
  CHECK(full.exit_code == 3);
  CHECK(full.output.find("with parallelism.ep_room 1; raise it to") != std::string::npos);
  CHECK(full.output.find("That step changed nothing") != std::string::npos);
}

}  // namespace llmtrain::test
