// slurm.
#include <array>
#include <cstdio>
#include <memory>

#include "apps/llmtrain/commands.hpp"
#include "apps/llmtrain/shell_words.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/shell_word.hpp"
#include "lib/train/batch_script.hpp"
#include "lib/train/first_weights.hpp"

namespace llmtrain::app {

namespace {

namespace fs = std::filesystem;

struct Scripts {
  fs::path directory;  // of the run
  std::string training;
  std::string data;     // with tasks for it
  bool cleans = false;  // then its tasks take two rounds
};

// What `check` would refuse is refused here, too, not after hours in a queue.
Scripts make_scripts(const RecipeArguments& arguments, const BatchOptions& options) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  train::enter_job(*recipe);
  Scripts scripts{.directory = train::output_dir(*recipe, arguments.recipe)};
  train::check_first_weights(*recipe, scripts.directory);
  std::error_code unknown;
  const train::BatchScript script{.name = train::run_name(*recipe, arguments.recipe),
                                  .arguments = shell_words(arguments),
                                  .self = fs::read_symlink("/proc/self/exe", unknown)};
  scripts.training = train::training_script(*recipe, script);
  if (options.data_tasks) {
    scripts.data = train::data_script(*recipe, script, *options.data_tasks);
    scripts.cleans = recipe->data.cleaning.options().active();
  }
  return scripts;
}

// The number that sbatch prints. With data the training depends on them: it is cancelled where they
// fail, and does not wait for what can never come.
std::string submit(const fs::path& script, const std::string& after) {
  const std::string command = fmt::format(
      "sbatch --parsable {}{}",
      after.empty() ? "" : "--dependency=afterok:" + after + " --kill-on-invalid-dep=yes ",
      shell_word(script.string()));
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  require<DeviceError>(pipe != nullptr, "cannot start a shell for `{}`", command);
  std::string printed;
  std::array<char, 256> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) printed += buffer.data();
  const int status = ::pclose(pipe.release());
  // "17", or "17;cluster"
  const std::string number = printed.substr(0, printed.find_first_of(";\n"));
  // The cluster may be down, or refuse what the recipe asks for: only sbatch's words tell.
  require<DeviceError>(status == 0 && !number.empty(),
                       "`{}` has failed, for the reason above; if it is the job that the cluster "
                       "refuses, mend `slurm` of the recipe (often partition, account or time), "
                       "else submit again later",
                       command);
  return number;
}

}  // namespace

ExitCode print_batch_script(const RecipeArguments& arguments, const BatchOptions& options) {
  const Scripts scripts = make_scripts(arguments, options);
  const std::string& text = options.data_tasks ? scripts.data : scripts.training;
  std::fwrite(text.data(), 1, text.size(), stdout);
  return ExitCode::done;
}

ExitCode submit_batch(const RecipeArguments& arguments, const BatchOptions& options) {
  const Scripts scripts = make_scripts(arguments, options);
  std::error_code failed;
  fs::create_directories(scripts.directory, failed);
  require<StorageError>(!failed, "cannot create {}: {}", scripts.directory.string(),
                        failed.message());
  std::string after;
  if (options.data_tasks) {
    const fs::path data = scripts.directory / "data.sbatch";
    write_file_atomic(data, scripts.data);
    for (int round = 0; round < (scripts.cleans ? 2 : 1); ++round) {
      after = submit(data, after);
      fmt::print("data {}\n", after);
    }
  }
  const fs::path training = scripts.directory / "run.sbatch";
  write_file_atomic(training, scripts.training);
  fmt::print("{}\n", submit(training, after));
  return ExitCode::done;
}

}  // namespace llmtrain::app
