// What experts drop, as `llmtrain run` reports it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("the share of dropped choices is that of all ranks, and the one that one rank drops") {
  const Workshop w;
  const std::string model =
      "model={architecture: qwen3_moe, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 12, num_experts: 4, "
      "num_experts_per_tok: 2, max_position_embeddings: 64, capacity_factor: 0.75}";
  const auto run = [&](int ranks, const std::string& name, const std::string& parallelism) {
    const ProcessResult result =
        w.run(ranks, {model, fmt::format("run.output_dir={}", name), parallelism});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(result.output.find("steps took memory as planned") != std::string::npos);
    std::vector<double> shares;
    for (const auto& record : train::read_metrics(w.scratch / name / "metrics.jsonl")) {
      const auto share = record.number("experts/dropped_share");
      if (!share) continue;
      shares.push_back(*share);
      const double first = record.number("experts/dropped/0").value();
      const double second = record.number("experts/dropped/1").value();
      CHECK(std::abs((first + second) / 2 - *share) < 1e-6);
      // No expert takes more than three quarters of its even share, rounded up.
      CHECK(std::min(first, second) > 0.2);
      CHECK(std::max(first, second) < 0.75);
    }
    return shares;
  };
  const std::vector<double> one = run(1, "one", "parallelism.dp=1");
  CHECK(one.size() == 12);
  CHECK(one.front() != one.back());
  const std::vector<double> losses = losses_and_norms(w.scratch / "one");
  for (const auto& [ranks, parallelism] : {std::pair(8, "parallelism={dp: 2, tp: 2, pp: 2, ep: 2}"),
                                           std::pair(4, "parallelism={dp: 2, sp: 2, ep: 4}")}) {
    CAPTURE(parallelism);
    const std::string name = fmt::format("of-{}", ranks);
    CHECK(run(ranks, name, parallelism) == one);
    const std::vector<double> found = losses_and_norms(w.scratch / name);
    REQUIRE(found.size() == losses.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(std::abs(found[i] - losses[i]) <= 1e-11 * losses[i]);
    }
  }
}

}  // namespace llmtrain::test
