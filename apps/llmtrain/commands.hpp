#pragma once
/// The verbs of the executable: arguments -> one library call -> exit code. Errors are exceptions.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/error.hpp"

namespace llmtrain::app {

struct RecipeArguments {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;
};

/// As one of the processes that a launcher started, or alone.
ExitCode run(const RecipeArguments& arguments);

struct PlanArguments {
  bool json = false;
  /// Times at the speed that this machine has now.
  bool now = false;
  /// Where times come from; the default one if there is one.
  std::optional<std::filesystem::path> profile;
  /// Of the job; as many as the recipe's layout names.
  std::optional<int> ranks;
  /// For a picture of the pipeline: .svg, .txt, or .json for ui.perfetto.dev.
  std::optional<std::filesystem::path> timeline;
};
ExitCode plan(const RecipeArguments& arguments, const PlanArguments& what);
/// Reports all issues of the recipe; with `resolved`, prints every key with its value.
ExitCode check(const RecipeArguments& arguments, bool resolved);
/// The JSON Schema for editors.
ExitCode schema();
/// What a key or section means; all of them without a path.
ExitCode help_key(const std::string& path);

struct Measurement {
  /// 0 = all cores.
  int threads = 0;
  bool quick = false;
  /// Default: the profile that `plan` and `run` look for.
  std::optional<std::filesystem::path> output;
};
/// Prints what the machine is and measures its hardware profile.
ExitCode doctor(const Measurement& arguments);

/// As many GPUs as most machines have.
inline constexpr int kUsualRanksPerNode = 8;
/// What one process knows of a job that has not been started.
struct AssumedJob {
  /// As many as the recipe's layout names.
  std::optional<int> ranks;
  std::optional<int> ranks_per_node;
};
/// Prints which ranks form the groups of the recipe's layout, on which machines, and which groups
/// cross between them. As one of the processes that a launcher started, with their machines.
ExitCode show_layout(const RecipeArguments& arguments, const AssumedJob& assumed);
struct BenchArguments {
  std::int64_t steps = 5;
  bool json = false;
  /// On a GPU: an arena of the size that the plan says, not of all memory that is free.
  bool planned_memory = false;
  std::optional<std::filesystem::path> profile;
};
/// Time per kernel of a few steps on random tokens, beside the predicted one.
ExitCode bench(const RecipeArguments& arguments, const BenchArguments& how);

ExitCode list_recipes();
ExitCode print_recipe(const std::string& name);
/// Copies a shipped recipe; an existing file is not overwritten.
ExitCode copy_recipe(const std::string& name, const std::filesystem::path& to);

/// At most one of these.
struct PreparedShare {
  std::optional<std::string> shard;  ///< "I/N": this task's share
  bool slurm_array = false;          ///< the share that Slurm's environment names
  bool finish = false;               ///< no share: only what is left when all tasks are done
};
/// The whole data, or one task's share of it. With `finish`, what is missing is an error.
ExitCode prepare_data(const RecipeArguments& arguments, const PreparedShare& share);
/// Prints how fast one thread reads and cleans; writes nothing.
ExitCode measure_preparation(const RecipeArguments& arguments);
ExitCode inspect_data(const RecipeArguments& arguments, std::uint64_t sample, bool rows);
/// Writes what the first `steps` steps of a run read, sample after sample in their order: its
/// tokens, then what they predict (-1 where nothing is trained), as int32.
ExitCode write_batches(const RecipeArguments& arguments, std::int64_t steps,
                       const std::filesystem::path& to);
/// Names of the source files, or of held-out documents.
ExitCode list_data(const RecipeArguments& arguments, bool held_out);
/// The text of the held-out documents, byte for byte.
ExitCode print_held_out(const RecipeArguments& arguments);

struct BatchOptions {
  /// Tasks of a job array that prepares the data; none without.
  std::optional<int> data_tasks;
};
/// Prints the batch script of the recipe's job for Slurm, or that of the job array.
ExitCode print_batch_script(const RecipeArguments& arguments, const BatchOptions& options);
/// Writes the scripts into the run's directory, hands them to sbatch and prints the jobs' numbers;
/// the run waits for the array.
ExitCode submit_batch(const RecipeArguments& arguments, const BatchOptions& options);

struct TokenizerTraining {
  std::vector<std::filesystem::path> files;
  std::filesystem::path output;
  std::uint64_t vocab_size = 8192;
  std::string pattern = "gpt2";
};
ExitCode train_tokenizer(const TokenizerTraining& arguments);

struct TokenizerTexts {
  std::filesystem::path tokenizer;           ///< tokenizer.json, its directory, or "bytes"
  std::vector<std::filesystem::path> files;  ///< none: standard input
  bool lines = false;                        ///< each line is a text of its own
  bool special = false;
  bool json = false;
  bool statistics = false;
};
/// Texts to one line of ids each, or to one line of statistics.
ExitCode encode(const TokenizerTexts& arguments);
/// Ids to text, byte for byte.
ExitCode decode(const TokenizerTexts& arguments);

struct TokenizerDifference {
  std::filesystem::path a, b;
  std::vector<std::filesystem::path> files;
  bool lines = false;
  bool special = false;
  std::optional<std::uint64_t> generated;  ///< texts of data::adversarial_text instead of files
  std::uint64_t seed = 0;
};
/// Prints the first text whose ids differ, with both; exit code 1 if there is one.
ExitCode diff_tokenizers(const TokenizerDifference& arguments);

struct Generation {
  std::filesystem::path run;
  std::string prompt;
  std::int64_t max_tokens = 200;
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> step;
};
ExitCode generate(const Generation& arguments);
ExitCode evaluate(const std::filesystem::path& run, std::optional<std::uint64_t> step);

enum class ReportForm { html, text, check };
ExitCode report(const std::filesystem::path& run, ReportForm form);
/// Prints two runs side by side.
ExitCode compare_runs(const std::filesystem::path& a, const std::filesystem::path& b);

/// What the run is doing. Exit code 0 when it lives or has ended well; its own when it has failed;
/// peer_lost when its process is gone without a word.
ExitCode status(const std::filesystem::path& run, bool as_json);

ExitCode list_checkpoints(const std::filesystem::path& run);
ExitCode verify_checkpoints(const std::filesystem::path& run);
struct Export {
  std::filesystem::path run, to;
  std::string dtype = "fp32";
  std::optional<std::uint64_t> step;
};
/// Writes a Hugging Face directory: config.json, model.safetensors, tokenizer.
ExitCode export_checkpoint(const Export& arguments);

/// Makes the recipe's run.output_dir a run that begins with the weights of a Hugging Face
/// directory. As one of the processes that a launcher started, or alone.
ExitCode import_checkpoint(const RecipeArguments& arguments, const std::filesystem::path& from);

ExitCode version();

}  // namespace llmtrain::app
