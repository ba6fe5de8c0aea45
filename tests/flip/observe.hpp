#pragma once
/// What a recipe does, as text: two recipes that do the same give the same text, run after run.

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::test {

/// One thing that a recipe decides.
enum class Sight : std::uint8_t {
  plan,        // `llmtrain plan --json`, without times
  operations,  // kernel launches of a step and an evaluation, in order, and the step's allocations
  data,        // samples in the order of training, and the held-out ones
  metrics,     // records of metrics.jsonl, without those of the clock
  weights,     // every tensor of the newest checkpoint
  files,       // what a run leaves on the disk, without the bytes inside
  samples,     // texts written while training
  exit,        // exit code
  job,         // batch scripts of `llmtrain slurm`
};
inline constexpr std::array kAllSights{Sight::plan,    Sight::operations, Sight::data,
                                       Sight::metrics, Sight::weights,    Sight::files,
                                       Sight::samples, Sight::exit,       Sight::job};
std::string_view to_string(Sight sight);

/// Inputs that the recipes of the table read, and a place to run them in.
class Workshop {
 public:
  /// A new directory that becomes the working directory: two text files, JSONL, a tokenizer and a
  /// Hugging Face model.
  Workshop();
  ~Workshop();
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  /// What the recipe at `recipe.yaml` with these overrides does. With `after_a_run`, a run without
  /// overrides has been there before. Runs the executable for a sight that needs it, once for all
  /// sights of equal arguments.
  std::string see(Sight sight, const std::vector<std::string>& overrides, bool after_a_run);

  static constexpr std::string_view kRecipeFile = "recipe.yaml";
  /// Whether recipes may run on a GPU here, an emulated one.
  static bool has_gpu();

 private:
  struct Run {
    std::vector<std::string> overrides;
    bool after_a_run = false;
    std::string metrics, weights, files, samples, exit;
  };
  const Run& run(const std::vector<std::string>& overrides, bool after_a_run);
  void empty_runs() const;

  std::filesystem::path before_, directory_;
  std::deque<Run> runs_;  // references stay
};

/// Runs the executable here; its output goes into doctest's message if the exit code is not
/// `expected`, unless that is negative.
int execute(std::vector<std::string> arguments, int expected);

}  // namespace llmtrain::test
