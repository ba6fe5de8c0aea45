// `llmtrain slurm`: what it prints and refuses. Jobs of a real Slurm are in tests/slurm.
#include <filesystem>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain {

TEST_CASE("the scripts in scripts/slurm are what the commands in them make") {
  const Workspace here(kTinyRecipe);
  int scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_file("../scripts/slurm"))) {
    if (entry.path().extension() != ".sbatch") continue;
    ++scripts;
    const std::string text = read_file(entry.path());
    const std::string_view mark = "# llmtrain slurm script ";
    const std::size_t begin = text.find(mark) + mark.size();
    REQUIRE(begin > mark.size());
    const std::string arguments = text.substr(begin, text.find('\n', begin) - begin);
    const auto made = test::run_process(
        {"/bin/bash", "-c", fmt::format("{} slurm script {}", LLMTRAIN_EXECUTABLE, arguments)},
        here.path, {});
    INFO(arguments);
    CHECK(made.exit_code == 0);
    CHECK(made.output == text);
  }
  CHECK(scripts == 3);
}

TEST_CASE("submit hands the script to sbatch, and says what sbatch says") {
  const Workspace here(kTinyRecipe);
  here.write("bin/sbatch",
             "#!/bin/bash\necho \"$@\" >> calls\necho \"asked for $#\" >&2\n"
             "[ -e refuses ] && exit 1\necho $((16 + $(wc -l < calls)))\\;cluster\n");
  std::filesystem::permissions(here.path / "bin" / "sbatch", std::filesystem::perms::owner_all);
  const auto submit = [&](const std::string& more) {
    return test::run_process({"/bin/bash", "-c",
                              fmt::format("PATH=$PWD/bin:$PATH {} slurm submit recipe.yaml {}",
                                          LLMTRAIN_EXECUTABLE, more)},
                             here.path, {});
  };
  CHECK(holds(submit("").output, {"\n17\n"}));
  CHECK(read_file(here.path / "calls") == "--parsable run/run.sbatch\n");
  const auto with_data = submit("--data-tasks 4 data.cleaning.deduplication.exact=true");
  INFO(with_data.output);
  CHECK(holds(with_data.output, {"data 18\n", "data 19\n", "\n20\n"}));
  CHECK(holds(read_file(here.path / "calls"),
              {"--parsable run/data.sbatch\n--parsable --dependency=afterok:18 "
               "--kill-on-invalid-dep=yes run/data.sbatch\n"
               "--parsable --dependency=afterok:19 --kill-on-invalid-dep=yes run/run.sbatch\n"}));
  here.write("refuses", "");
  const auto refused = submit("");
  CHECK(refused.exit_code == 1);  // a cluster that is down is no mistake of the recipe
  CHECK(holds(refused.output, {"has failed, for the reason above"}));
  const auto wrong = submit("slurm.nodes=3");
  CHECK(wrong.exit_code == 2);
  CHECK(holds(wrong.output, {"3 machines x 1 tasks are 3 ranks"}));
}

}  // namespace llmtrain
