#pragma once
/// Verbs on the command line: names, options, and what each is for.

#include <cstdint>
#include <functional>
#include <optional>

#include "apps/llmtrain/commands.hpp"

namespace CLI {
class App;
}

namespace llmtrain::app {

/// The verb that was given; set by CLI11's callbacks, run after parsing.
using Action = std::function<ExitCode()>;

/// The recipe and its overrides.
void add_recipe(CLI::App* verb, RecipeArguments& to);
/// --step of verbs that read a checkpoint.
void add_step(CLI::App* verb, std::optional<std::uint64_t>& to);
/// slurm, status, report.
void add_job_verbs(CLI::App& root, Action& action);

}  // namespace llmtrain::app
