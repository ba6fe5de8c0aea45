// The verbs around a run: where it is started, and what it does.
#include <charconv>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/llmtrain/verbs.hpp"

namespace llmtrain::app {

void add_recipe(CLI::App* verb, RecipeArguments& to) {
  verb->add_option("recipe", to.recipe, "recipe file, or the name of a shipped one")->required();
  verb->add_option("overrides", to.overrides, "key.path=value, or ~key.path for the default");
}

// By itself: the command line's library takes -1 for 2^64 - 1, and nothing for 0.
void add_step(CLI::App* verb, std::optional<std::uint64_t>& to) {
  verb->add_option_function<std::string>(
      "--step",
      [&to](const std::string& text) {
        std::uint64_t step = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, step);
        if (error != std::errc{} || rest != end) {
          throw CLI::ValidationError(
              "--step", fmt::format("`{}` is no number of a step; `llmtrain ckpt ls` lists those "
                                    "that there are",
                                    text));
        }
        to = step;
      },
      "checkpoint; default the newest valid one");
}

namespace {

void add_slurm_verbs(CLI::App& root, Action& action) {
  static RecipeArguments arguments;
  static BatchOptions options;
  CLI::App* slurm = root.add_subcommand("slurm", "jobs for Slurm clusters");
  slurm->require_subcommand(1);
  for (const bool submits : {false, true}) {
    CLI::App* verb =
        submits ? slurm->add_subcommand("submit", "submit the job and print its number")
                : slurm->add_subcommand("script", "print the batch script of the recipe's job");
    add_recipe(verb, arguments);
    verb->add_option("--data-tasks", options.data_tasks,
                     submits ? "prepare the data first, in a job array of so many tasks"
                             : "print the job array of so many tasks that prepares the data")
        ->check(CLI::Range(1, 1 << 20));
    verb->callback([&action, submits] {
      action = [submits] {
        return submits ? submit_batch(arguments, options) : print_batch_script(arguments, options);
      };
    });
  }
}

void add_status_verb(CLI::App& root, Action& action) {
  static std::filesystem::path run;
  static bool json = false;
  CLI::App* status = root.add_subcommand("status", "what a run is doing, and whether it lives");
  status->add_option("run", run, "output directory of a run")->required();
  status->add_flag("--json", json, "machine-readable");
  status->callback([&action] { action = [] { return app::status(run, json); }; });
}

void add_report_verb(CLI::App& root, Action& action) {
  static std::filesystem::path run, other;
  static bool text = false;
  static bool check = false;
  static bool compare = false;
  CLI::App* report = root.add_subcommand("report", "write report.html of a run");
  report->add_option("run", run, "output directory of a run")->required();
  CLI::Option* second = report->add_option("other", other, "with --compare: that of another one");
  report->add_flag("--text", text, "print the loss curve instead");
  report->add_flag("--check", check, "open and parse the report that is there");
  CLI::Option* compares = report->add_flag("--compare", compare, "print two runs side by side");
  compares->needs(second);
  second->needs(compares);
  report->callback([&action] {
    action = [] {
      if (compare) return app::compare_runs(run, other);
      return app::report(run, check  ? app::ReportForm::check
                              : text ? app::ReportForm::text
                                     : app::ReportForm::html);
    };
  });
}

}  // namespace

void add_job_verbs(CLI::App& root, Action& action) {
  add_slurm_verbs(root, action);
  add_status_verb(root, action);
  add_report_verb(root, action);
}

}  // namespace llmtrain::app
