#pragma once
/// The files of a run beside its checkpoints.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/plan/predict.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/sample.hpp"

namespace llmtrain::train {

/// Commit, compiler and build options of this executable.
std::map<std::string, std::string> build_facts();
/// build_facts with host name, instruction set, threads and determinism: what bitwise promises
/// depend on.
std::map<std::string, std::string> environment(int threads, kernels::Determinism determinism);

/// run.json: facts for the report.
void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe,
                     const plan::Plan& plan, const std::map<std::string, std::string>& environment);
/// plan.json: the plan's figures, bytes per category, and times if they are known.
void write_plan(const std::filesystem::path& directory, const plan::Plan& plan,
                const std::optional<plan::PlannedTime>& time);
/// Makes samples.jsonl end where a run that resumes from `step` goes on, or begin anew without a
/// step, and returns the samples of that step. Lines that are none are set aside (keep_lines).
std::vector<Sample> keep_samples(const std::filesystem::path& directory,
                                 std::optional<std::int64_t> step);
void append_sample(const std::filesystem::path& directory, const Sample& sample);

/// A line more in incidents.jsonl, which nothing takes away again: what was wrong with a step and
/// what was done (incident_of). Survives a loss of power.
void append_incident(const std::filesystem::path& directory, const StepRecord& incident);
/// Sets lines of incidents.jsonl aside that are none (keep_lines).
void keep_incidents(const std::filesystem::path& directory);

}  // namespace llmtrain::train
