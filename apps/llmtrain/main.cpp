// llmtrain: the command line.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/llmtrain/commands.hpp"
#include "apps/llmtrain/verbs.hpp"
#include "lib/base/ending.hpp"
#include "lib/base/exit_codes.hpp"
#include "lib/base/log.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/plan/hardware_sheet.hpp"
#include "lib/recipe/suggest.hpp"
#include "lib/train/run_directory.hpp"

namespace {

using namespace llmtrain;

using app::Action;
using app::add_job_verbs;
using app::add_recipe;
using app::add_step;

void add_recipe_verbs(CLI::App& root, Action& action) {
  static app::RecipeArguments arguments;
  static bool resolved = false;
  static std::string key;
  CLI::App* run = root.add_subcommand("run", "plan, prepare the data, train, report");
  add_recipe(run, arguments);
  run->callback([&action] { action = [] { return app::run(arguments); }; });

  CLI::App* plan = root.add_subcommand("plan", "memory, FLOPs and sizes, without training");
  add_recipe(plan, arguments);
  static app::PlanArguments planned;
  plan->add_flag("--json", planned.json, "machine-readable");
  plan->add_option("--ranks", planned.ranks,
                   "ranks of the job; default those that the recipe's parallelism names")
      ->check(CLI::Range(1, 1 << 20));
  plan->add_option("--profile", planned.profile,
                   fmt::format("hardware profile of `doctor`, a data sheet *.yaml, or the name of "
                               "one ({}); default the profile of `doctor`",
                               fmt::join(plan::builtin_sheet_names(), ", ")));
  plan->add_option_function<std::string>(
      "--device",
      [](const std::string& device) { arguments.overrides.push_back("run.device=" + device); },
      "plan for this device instead of run.device: cpu or cuda");
  plan->add_flag("--now", planned.now,
                 "times at the speed that this machine has now, not undisturbed");
  plan->add_option(
      "--timeline", planned.timeline,
      "write what each rank of the pipeline does when: FILE.svg, FILE.txt, or FILE.json "
      "for ui.perfetto.dev");
  plan->callback([&action] { action = [] { return app::plan(arguments, planned); }; });

  CLI::App* bench = root.add_subcommand("bench", "time per kernel of a step, and as predicted");
  add_recipe(bench, arguments);
  static app::BenchArguments measured;
  bench->add_flag("--json", measured.json, "machine-readable");
  bench->add_option("--steps", measured.steps, "steps to measure")->check(CLI::Range(1, 1'000'000));
  bench->add_option("--profile", measured.profile, "hardware profile; default the one of `doctor`");
  bench->add_flag("--planned-memory", measured.planned_memory,
                  "on a GPU: take the memory that the plan says, not all that is free");
  bench->callback([&action] { action = [] { return app::bench(arguments, measured); }; });

  CLI::App* check = root.add_subcommand("check", "report every mistake in a recipe");
  add_recipe(check, arguments);
  check->add_flag("--resolved", resolved, "print every key with its value and where it came from");
  check->callback([&action] { action = [] { return app::check(arguments, resolved); }; });

  root.add_subcommand("schema", "JSON Schema of recipes, for editors")->callback([&action] {
    action = [] { return app::schema(); };
  });
  CLI::App* keys = root.add_subcommand("keys", "what recipe keys mean");
  keys->add_option("key", key, "key path or section; all keys without it");
  keys->callback([&action] { action = [] { return app::help_key(key); }; });
}

void add_shipped_recipe_verbs(CLI::App& root, Action& action) {
  static std::string name;
  static std::filesystem::path to;
  CLI::App* recipes = root.add_subcommand("recipes", "recipes inside this executable");
  recipes->require_subcommand(1);
  recipes->add_subcommand("ls", "list them")->callback([&action] {
    action = [] { return app::list_recipes(); };
  });
  CLI::App* cat = recipes->add_subcommand("cat", "print one");
  cat->add_option("name", name)->required();
  cat->callback([&action] { action = [] { return app::print_recipe(name); }; });
  CLI::App* cp = recipes->add_subcommand("cp", "copy one");
  cp->add_option("name", name)->required();
  cp->add_option("to", to, "file to write")->required();
  cp->callback([&action] { action = [] { return app::copy_recipe(name, to); }; });
}

void add_data_verbs(CLI::App& root, Action& action) {
  static app::RecipeArguments arguments;
  static std::uint64_t sample = 0;
  static bool rows = false;
  static bool held_out = false;
  static app::PreparedShare share;
  static bool measure = false;
  CLI::App* data = root.add_subcommand("data", "training text");
  data->require_subcommand(1);
  CLI::App* prepare = data->add_subcommand("prepare", "train the tokenizer and write token files");
  add_recipe(prepare, arguments);
  CLI::Option* shard =
      prepare->add_option("--shard", share.shard,
                          "I/N: only this task's share, I from 0 to N-1; tasks may run at once");
  CLI::Option* slurm = prepare->add_flag("--slurm-array", share.slurm_array,
                                         "as --shard, by the environment of a Slurm job array");
  CLI::Option* finish = prepare->add_flag("--finish", share.finish,
                                          "make nothing of a share; name what tasks have not made");
  CLI::Option* measured = prepare->add_flag(
      "--measure", measure, "print how fast one thread reads and cleans, and write nothing");
  shard->excludes(slurm)->excludes(finish)->excludes(measured);
  slurm->excludes(finish)->excludes(measured);
  finish->excludes(measured);
  prepare->callback([&action] {
    action = [] {
      return measure ? app::measure_preparation(arguments) : app::prepare_data(arguments, share);
    };
  });
  CLI::App* inspect = data->add_subcommand("inspect", "show a sample as the model sees it");
  add_recipe(inspect, arguments);
  inspect->add_option("--sample", sample, "number of the sample in document order");
  inspect->add_flag("--rows", rows, "one line per token");
  inspect->callback(
      [&action] { action = [] { return app::inspect_data(arguments, sample, rows); }; });
  static std::int64_t steps = 1;
  static std::filesystem::path to;
  CLI::App* batches = data->add_subcommand(
      "batches", "write what the steps of a run read and predict, for other programs: int32");
  add_recipe(batches, arguments);
  batches->add_option("--steps", steps, "of the run's first")->check(CLI::Range(1, 1'000'000));
  batches->add_option("--output", to, "file to write")->required();
  batches->callback(
      [&action] { action = [] { return app::write_batches(arguments, steps, to); }; });
  CLI::App* files = data->add_subcommand("files", "list the source files");
  add_recipe(files, arguments);
  files->add_flag("--held-out", held_out, "list the held-out documents instead");
  files->callback([&action] { action = [] { return app::list_data(arguments, held_out); }; });
  CLI::App* cat = data->add_subcommand("held-out", "print the held-out text");
  add_recipe(cat, arguments);
  cat->callback([&action] { action = [] { return app::print_held_out(arguments); }; });
}

void add_tokenizer_texts(CLI::App* verb, app::TokenizerTexts& to) {
  verb->add_option("tokenizer", to.tokenizer, "tokenizer.json, its directory, or `bytes`")
      ->required();
  verb->add_option("files", to.files, "input; standard input without any");
  verb->add_flag("--lines", to.lines, "each line by itself; default: each file as a whole");
}

void add_tokenizer_diff(CLI::App* tokenizer, Action& action) {
  static app::TokenizerDifference difference;
  CLI::App* diff = tokenizer->add_subcommand(
      "diff", "compare the ids of two tokenizers; exit code 1 and the first text that differs");
  diff->add_option("a", difference.a, "tokenizer.json, its directory, or `bytes`")->required();
  diff->add_option("b", difference.b, "the other one")->required();
  diff->add_option("files", difference.files, "texts; standard input without any");
  diff->add_flag("--lines", difference.lines, "each line is a text of its own");
  diff->add_flag("--special", difference.special, "with the special tokens around each text");
  diff->add_option("--generate", difference.generated,
                   "compare on so many generated texts, hard ones of 5 kB, instead of files");
  diff->add_option("--seed", difference.seed, "of the first generated text; the next have the next")
      ->capture_default_str();
  diff->callback([&action] { action = [] { return app::diff_tokenizers(difference); }; });
}

void add_tokenizer_verbs(CLI::App& root, Action& action) {
  static app::TokenizerTraining training;
  static app::TokenizerTexts texts;
  CLI::App* tokenizer = root.add_subcommand("tokenizer", "train, use and compare BPE tokenizers");
  tokenizer->require_subcommand(1);
  CLI::App* train = tokenizer->add_subcommand("train", "learn a vocabulary from text files");
  train->add_option("files", training.files, "text files or directories")->required();
  train->add_option("--output", training.output, "directory for tokenizer.json")->required();
  train->add_option("--vocab-size", training.vocab_size, "tokens")->capture_default_str();
  train->add_option("--pattern", training.pattern, "what merges never cross")
      ->check(CLI::IsMember(data::pattern_names()))
      ->capture_default_str();
  train->callback([&action] { action = [] { return app::train_tokenizer(training); }; });
  CLI::App* encode = tokenizer->add_subcommand("encode", "text to one line of ids per text");
  add_tokenizer_texts(encode, texts);
  CLI::Option* special =
      encode->add_flag("--special", texts.special,
                       "with the special tokens that the file's post_processor puts around a text");
  CLI::Option* json = encode->add_flag("--json", texts.json, "ids as a JSON array");
  encode->add_flag("--stats", texts.statistics, "tokens, bytes per token and speed instead of ids")
      ->excludes(special)
      ->excludes(json);
  encode->callback([&action] { action = [] { return app::encode(texts); }; });
  CLI::App* decode = tokenizer->add_subcommand("decode", "ids to text, byte for byte");
  add_tokenizer_texts(decode, texts);
  decode->callback([&action] { action = [] { return app::decode(texts); }; });
  add_tokenizer_diff(tokenizer, action);
}

void add_model_verbs(CLI::App& root, Action& action) {
  static app::Generation generation;
  static std::filesystem::path run;
  static std::optional<std::uint64_t> step;
  CLI::App* generate = root.add_subcommand("generate", "continue a prompt");
  generate->add_option("run", generation.run, "output directory of a run")->required();
  generate->add_option("--prompt", generation.prompt, "text to continue");
  generate->add_option("--max-tokens", generation.max_tokens, "most tokens to add");
  generate->add_option("--temperature", generation.temperature, "0 = most probable token");
  generate->add_option("--top-k", generation.top_k, "0 = all");
  generate->add_option("--top-p", generation.top_p, "1 = all");
  generate->add_option("--seed", generation.seed, "same seed, same text");
  add_step(generate, generation.step);
  generate->callback([&action] { action = [] { return app::generate(generation); }; });

  CLI::App* eval = root.add_subcommand("eval", "loss on the held-out text");
  eval->add_option("run", run, "output directory of a run")->required();
  add_step(eval, step);
  eval->callback([&action] { action = [] { return app::evaluate(run, step); }; });
}

void add_run_directory_verbs(CLI::App& root, Action& action) {
  static std::filesystem::path run;
  CLI::App* ckpt = root.add_subcommand("ckpt", "checkpoints of a run");
  ckpt->require_subcommand(1);
  for (const bool verify : {false, true}) {
    CLI::App* verb = verify ? ckpt->add_subcommand("verify", "check every byte against its hash")
                            : ckpt->add_subcommand("ls", "list them");
    verb->add_option("run", run, "output directory of a run")->required();
    verb->callback([&action, verify] {
      action = [verify] {
        return verify ? app::verify_checkpoints(run) : app::list_checkpoints(run);
      };
    });
  }
  static app::Export to_export;
  CLI::App* export_verb = ckpt->add_subcommand("export", "write a Hugging Face directory");
  export_verb->add_option("run", to_export.run, "output directory of a run")->required();
  export_verb->add_option("to", to_export.to, "new or empty directory")->required();
  export_verb->add_option("--dtype", to_export.dtype, "fp32, bf16 or fp16");
  add_step(export_verb, to_export.step);
  export_verb->callback([&action] { action = [] { return app::export_checkpoint(to_export); }; });
  static app::RecipeArguments importing;
  static std::filesystem::path from;
  CLI::App* import_verb = ckpt->add_subcommand(
      "import", "begin the recipe's run with the weights of a Hugging Face directory");
  import_verb->add_option("recipe", importing.recipe, "recipe file, or the name of a shipped one")
      ->required();
  import_verb->add_option("from", from, "directory, or its one .safetensors file")->required();
  import_verb->add_option("overrides", importing.overrides,
                          "key.path=value, or ~key.path for the default");
  import_verb->callback(
      [&action] { action = [] { return app::import_checkpoint(importing, from); }; });
  root.add_subcommand("version", "commit, compiler and features")->callback([&action] {
    action = [] { return app::version(); };
  });
}

void add_doctor(CLI::App& root, Action& action) {
  static app::Measurement measurement;
  static app::RecipeArguments arguments;
  static app::AssumedJob assumed;
  CLI::App* doctor = root.add_subcommand(
      "doctor", "look at this machine and measure its kernels, or show a recipe's layout");
  CLI::Option* threads =
      doctor->add_option("--threads", measurement.threads, "threads; default all cores");
  CLI::Option* output = doctor->add_option("--output", measurement.output, "profile to write");
  CLI::Option* quick = doctor->add_flag("--quick", measurement.quick, "coarser, in a few seconds");
  CLI::Option* recipe =
      doctor->add_option("recipe", arguments.recipe,
                         "measure nothing: show which ranks of its layout share what, and where");
  recipe->excludes(threads)->excludes(output)->excludes(quick);
  doctor->add_option("overrides", arguments.overrides,
                     "key.path=value, or ~key.path for the default");
  doctor
      ->add_option("--ranks", assumed.ranks,
                   "with a recipe: ranks of the job; default those that its parallelism names")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(recipe);
  doctor
      ->add_option(
          "--ranks-per-node", assumed.ranks_per_node,
          fmt::format("with a recipe: ranks of a machine; default {}", app::kUsualRanksPerNode))
      ->check(CLI::Range(1, 1 << 20))
      ->needs(recipe);
  doctor->callback([&action] {
    action = [] {
      return arguments.recipe.empty() ? app::doctor(measurement)
                                      : app::show_layout(arguments, assumed);
    };
  });
}

std::string exit_code_help() {
  std::string text = "Exit codes:";
  for (const auto& [code, meaning] : kExitCodes) {
    text += fmt::format("\n  {:>2}  {}", static_cast<int>(code), meaning);
  }
  return text;
}

// The command line's library says only that a verb is missing: this names the word in its place, if
// there is one, and the verbs.
std::string unknown_verb(const CLI::App& root) {
  const CLI::App* at = &root;
  std::string path = "llmtrain";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().back();
    path += " " + at->get_name();
  }
  const std::vector<std::string> words = at->remaining();
  if (words.empty() || at->get_require_subcommand_min() == 0) return "";
  std::vector<std::string> verbs;
  for (const CLI::App* verb : at->get_subcommands({})) verbs.push_back(verb->get_name());
  return fmt::format("{}: no verb `{}`; {}", path, words.front(),
                     recipe::suggestion(words.front(), verbs));
}

// OpenMP's threads spin while they wait, by default: with anything else running on the cores that
// costs far more than it saves (measured on two busy cores: a step takes twice as long). The
// runtime reads its setting before main, so the program starts itself again with it, unless the
// user chose.
void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  std::error_code missing;  // by its own path: `ps` shows that one's last part
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", missing);
  if (!missing) ::execv(self.c_str(), argv);
  ::execv("/proc/self/exe", argv);  // on failure the program just goes on, spinning
}

// What a verb has to say did not reach the file that it was to go to: who asks by script must not
// take that for an answer. Whoever reads a pipe may stop when they please.
bool output_is_lost() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return false;
  struct stat facts {};
  return ::fstat(STDOUT_FILENO, &facts) != 0 || !S_ISFIFO(facts.st_mode);
}

}  // namespace

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is a failing write, which has a message
  CLI::App root("llmtrain: train language models from a YAML recipe");
  root.require_subcommand(1);
  root.footer(exit_code_help());
  root.set_version_flag("--version", [] { return "llmtrain " + train::build_facts()["version"]; });
  Action action;
  add_recipe_verbs(root, action);
  add_shipped_recipe_verbs(root, action);
  add_data_verbs(root, action);
  add_job_verbs(root, action);
  add_tokenizer_verbs(root, action);
  add_model_verbs(root, action);
  add_run_directory_verbs(root, action);
  add_doctor(root, action);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string problem = unknown_verb(root); !problem.empty()) {
      log::error("{}", problem);
      return static_cast<int>(ExitCode::recipe);
    }
    return root.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::recipe);
  }
  try {
    const ExitCode code = action();
    if (code != ExitCode::done || root.got_subcommand("run") || !output_is_lost()) {
      return static_cast<int>(code);
    }
    log::error("the standard output cannot be written: what stands there is not all");
    return static_cast<int>(ExitCode::storage);
  } catch (const std::exception& error) {
    const Ending ending = ending_of(error);
    log::error("{}", ending.text);
    return static_cast<int>(ending.code);
  }
}
