// What is said of a layout and its machines before there are any.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain {

TEST_CASE("five models of the shelf fit an H200 as docs/gpu-results.md says") {
  const Workspace here(kTinyRecipe);
  const std::string page = read_file(test_file("../docs/gpu-results.md"));
  const std::string_view table =
      std::string_view(page).substr(page.find("## What fits into 141 GB"));
  for (const char* name : {"gpt2-124m", "gpt2-1558m", "qwen2.5-1.5b", "qwen2.5-7b", "llama3-8b"}) {
    const std::string_view row = table.substr(table.find(fmt::format("| {} |", name)));
    for (const char* master : {"fp32", "bf16+remainder"}) {
      const auto plan = here.call({"plan", name, "--device", "cuda", "--profile", "h200",
                                   fmt::format("precision.master={}", master)});
      INFO(plan.output);
      CHECK(plan.exit_code == 0);
      const std::size_t fits = plan.output.find("  fits ");
      REQUIRE(fits != std::string::npos);
      const std::size_t begin = plan.output.find_first_not_of(' ', fits + 6);
      const std::string figure = plan.output.substr(begin, plan.output.find(" of ", begin) - begin);
      CHECK(row.substr(0, row.find('\n')).find(figure) != std::string_view::npos);
      CHECK(holds(plan.output, {"predicted step time", "of 139.40 GiB"}));
    }
  }
}

TEST_CASE("a data sheet is a file of the user's as well, and the help names those that are known") {
  const Workspace here(kTinyRecipe);
  const auto plan = [&](const std::string& profile) {
    return here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", profile});
  };
  here.write("mine.yaml",
             "hardware: 1\ninclude: [h200]\ntitle: half an H200\n"
             "memory: {capacity: 64GiB, bytes_per_second: 2.4e12}\n");
  const auto mine = plan("mine.yaml");
  CHECK(mine.exit_code == 0);
  CHECK(holds(mine.output, {"half an H200, from the data sheet mine.yaml", "of 63.00 GiB"}));
  here.write("bad.yaml", "include: [h200]\nmemory:\n  bytes_per_second: -1\n  size: 3\n");
  const auto bad = plan("bad.yaml");
  CHECK(bad.exit_code == 2);
  CHECK(holds(bad.output, {"bad.yaml:3:21: memory.bytes_per_second: must be > 0",
                           "bad.yaml:4:3: memory.size: unknown key"}));
  CHECK(plan("nobody.yaml").exit_code == 2);
  // Anything else is what `doctor` wrote.
  here.write("other.json", "hardware: 1");
  const auto other = plan("other.json");
  CHECK(other.exit_code == 4);
  CHECK(holds(other.output, {"other.json", "measure again"}));
  CHECK(holds(here.call({"plan", "--help"}).output, {"a100, b200, ", "h100, h200, h800"}));
}

TEST_CASE("a plan of an axis that takes the rest wants to know of how many ranks") {
  const Workspace here(kTinyRecipe);
  const std::string layout = "parallelism={dp: 2, tp: -1}";
  const auto unknown = here.call({"plan", "recipe.yaml", layout});
  CHECK(unknown.exit_code == 2);
  CHECK(holds(unknown.output, {"parallelism.tp takes the rest of the ranks", "--ranks"}));
  const auto four = here.call({"plan", "recipe.yaml", layout, "--ranks", "4"});
  CHECK(four.exit_code == 0);
  CHECK(holds(four.output, {"4 = dp 2 x tp 2"}));
  CHECK(here.call({"plan", "recipe.yaml", layout, "--ranks", "5"}).exit_code == 2);
  const auto checked = here.call({"check", "recipe.yaml", layout});
  CHECK(checked.exit_code == 0);
  CHECK(holds(checked.output, {"no issues; parallelism.tp takes the rest of the ranks"}));
  CHECK(here.call({"check", "recipe.yaml", "parallelism.tp=-1"}).exit_code == 2);
  CHECK(here.call({"bench", "recipe.yaml", "--steps", "1", "parallelism={dp: 1, tp: -1}"})
            .exit_code == 0);
}

TEST_CASE("doctor shows which ranks of a layout share what, on machines that it assumes") {
  const Workspace here(kTinyRecipe);
  const auto known = here.call({"doctor", "recipe.yaml", "parallelism={tp: 2, dp: 2}"});
  CHECK(known.exit_code == 0);
  CHECK(holds(known.output,
              {"4 ranks = tp 2 x dp 2", "1 machine\n  ranks 0 to 3", "each inside a machine",
               "assumed: 4 ranks, as the recipe names, 8 on each machine"}));
  const auto apart =
      here.call({"doctor", "recipe.yaml", "parallelism={tp: -1, dp: 2}",
                 "model.num_attention_heads=4", "--ranks", "8", "--ranks-per-node", "2"});
  CHECK(apart.exit_code == 0);
  CHECK(holds(apart.output, {"8 ranks = tp 4 x dp 2", "4 machines",
                             "tp: 2 groups of 4 ranks at a distance of 1, each between machines, "
                             "on up to 2\n  0 1 2 3                 node 0, node 1\n",
                             "tp waits for every exchange", "assumed: 8 ranks, 2 on each"}));
  const auto large = here.call({"doctor", "llama3-405b", "--ranks", "16384"});
  CHECK(large.exit_code == 0);
  CHECK(holds(large.output, {"2048 machines", "... and 125 more groups"}));

  CHECK(holds(here.call({"doctor", "recipe.yaml", "parallelism={tp: -1, dp: 2}"}).output,
              {"parallelism.tp takes the rest of the ranks", "--ranks"}));
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"doctor", "recipe.yaml", "parallelism.tp=3", "--ranks", "4"},
           {"doctor", "recipe.yaml", "parallelism.tp=4", "--ranks", "4"},  // of two heads
           {"doctor", "recipe.yaml", "--quick"},
           {"doctor", "recipe.yaml", "--threads", "2"},
           {"doctor", "--ranks", "4"},
           {"doctor", "nobody.yaml"}}) {
    CAPTURE(wrong.back());
    CHECK(here.call(wrong).exit_code == 2);
  }
}

}  // namespace llmtrain
