#include "lib/train/run_directory.hpp"

#include <array>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/torn_lines.hpp"
#include "lib/train/version.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;

std::string instruction_set() {
  if (__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
  return "sse2";
}

Json category_json(const CategoryBytes& bytes) {
  Json json = Json::object();
  for (int c = 0; c < kNumCategories; ++c) {
    if (bytes[static_cast<std::size_t>(c)] > 0) {
      json[std::string(to_string(Category(c)))] = bytes[static_cast<std::size_t>(c)];
    }
  }
  return json;
}

}  // namespace

std::map<std::string, std::string> build_facts() {
  return {{"version", std::string(kVersion)},
          {"commit", std::string(kCommit)},
          {"compiler", std::string(kCompiler)}};
}

std::map<std::string, std::string> environment(int threads, kernels::Determinism determinism) {
  std::map<std::string, std::string> facts = build_facts();
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  facts["host"] = host.data();
  facts["instruction_set"] = instruction_set();
  facts["threads"] = std::to_string(threads);
  facts["determinism"] = kernels::to_string(determinism);
  return facts;
}

void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe,
                     const plan::Plan& plan,
                     const std::map<std::string, std::string>& environment) {
  Json json;
  json["model"] = recipe.model.architecture().name;
  json["parameters"] = plan.parameters;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["seed"] = recipe.run.seed();
  for (const auto& [key, value] : environment) json[key] = value;
  write_file_atomic(directory / "run.json", json.dump(2) + "\n");
}

void write_plan(const std::filesystem::path& directory, const plan::Plan& plan,
                const std::optional<plan::PlannedTime>& time) {
  Json json;
  json["parameters"] = plan.parameters;
  json["parameters_per_block"] = plan.parameters_per_block;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["model_flops_per_token"] = plan.model_flops_per_token;
  json["peak_bytes"] = plan.peak_bytes();
  json["peak_instant"] = plan.step.peak.tag;
  json["checkpoint_bytes"] = plan.durable_bytes();
  if (time) {
    json["predicted_step_seconds"] = time->step.seconds;
    json["predicted_tokens_per_second"] = time->step.tokens_per_second;
    if (time->step.mfu > 0) json["predicted_mfu"] = time->step.mfu;
    if (time->run_seconds > 0) json["predicted_run_seconds"] = time->run_seconds;
  }
  json["memory"]["planned"] = category_json(plan.step.peak.per_category);
  write_file_atomic(directory / "plan.json", json.dump(2) + "\n");
}

namespace {

Sample parse_sample(std::string_view line, const std::filesystem::path& path, std::size_t number) {
  const Json json = Json::parse(line, nullptr, false);
  const auto has = [&](const char* key, bool (Json::*is_type)() const noexcept) {
    const auto at = json.is_object() ? json.find(key) : json.end();
    return at != json.end() && ((*at).*is_type)();
  };
  require<DataError>(has("step", &Json::is_number_integer) && has("prompt", &Json::is_string) &&
                         has("text", &Json::is_string),
                     "{}:{}: not a sample", path.string(), number);
  return {.step = json["step"].get<std::int64_t>(),
          .prompt = json["prompt"].get<std::string>(),
          .text = json["text"].get<std::string>()};
}

}  // namespace

std::vector<Sample> keep_samples(const std::filesystem::path& directory,
                                 std::optional<std::int64_t> step) {
  const std::filesystem::path path = directory / "samples.jsonl";
  std::vector<Sample> of_step;
  keep_lines(path, [&](std::string_view line, std::size_t number) {
    Sample sample = parse_sample(line, path, number);
    const bool stays = step && sample.step <= *step;
    if (stays && sample.step == *step) of_step.push_back(std::move(sample));
    return stays;
  });
  return of_step;
}

void append_sample(const std::filesystem::path& directory, const Sample& sample) {
  Json json;
  json["step"] = sample.step;
  json["prompt"] = sample.prompt;
  json["text"] = sample.text;
  File file = File::open_append(directory / "samples.jsonl");
  // A token may end inside a character: what is no UTF-8 becomes U+FFFD.
  file.write(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.sync();
  file.close();
}

void append_incident(const std::filesystem::path& directory, const StepRecord& incident) {
  const std::filesystem::path path = directory / "incidents.jsonl";
  if (std::filesystem::exists(path)) {
    const std::string content = read_file(path);
    const std::size_t whole = content.rfind('\n') + 1;  // a killed process may have left the rest
    if (whole < content.size()) write_file_atomic(path, content.substr(0, whole));
  }
  File file = File::open_append(path);
  file.write(to_line(incident) + '\n');
  file.sync();
  sync_directory(directory);
}

void keep_incidents(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "incidents.jsonl";
  keep_lines(path, [&](std::string_view line, std::size_t number) {
    check_metrics_line(line, path.string(), number);
    return true;
  });
}

}  // namespace llmtrain::train
