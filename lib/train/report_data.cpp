#include "lib/train/report_data.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/strict_json.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;

/// Parses a JSON object.
Json parse_object(std::string_view text, const std::string& name) {
  Json json;
  try {
    json = Json::parse(text, JsonDepth{name, "let the run write it again"});
  } catch (const Json::exception& error) {
    fail<DataError>("{}: not JSON: {}", name, error.what());
  }
  require<DataError>(json.is_object(), "{}: a JSON object is expected", name);
  return json;
}

std::string read_optional(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_file(path) : std::string();
}

void flatten(const Json& object, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& out) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) {
      flatten(value, name, out);
    } else {
      out.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

CategoryBytes& row_of(std::vector<CategoryBytes>& rows, std::string_view category) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [category](const auto& r) { return r.category == category; });
  if (row != rows.end()) return *row;
  return rows.emplace_back(CategoryBytes{std::string(category), std::nullopt, std::nullopt});
}

void read_plan(const std::filesystem::path& path, RunData& run) {
  const std::string text = read_optional(path);
  if (text.empty()) return;
  Json plan = parse_object(text, path.string());
  if (const auto memory = plan.find("memory"); memory != plan.end() && memory->is_object()) {
    const auto planned = memory->find("planned");
    require<DataError>(planned != memory->end() && planned->is_object(),
                       "{}: \"memory\" needs an object \"planned\" of category: bytes",
                       path.string());
    for (const auto& [category, bytes] : planned->items()) {
      require<DataError>(bytes.is_number_unsigned(), "{}: memory.planned.{} is no number of bytes",
                         path.string(), category);
      row_of(run.memory, category).planned = bytes.get<std::uint64_t>();
    }
    plan.erase("memory");
  }
  flatten(plan, "", run.plan);
}

void read_measured_memory(RunData& run) {
  for (const StepRecord& record : run.records) {
    for (const auto& [key, value] : record.fields) {
      std::string_view name = key;
      if (name == metric::kPeakBytes || !name.starts_with(metric::kMemoryPrefix) ||
          !name.ends_with(metric::kBytesSuffix)) {
        continue;
      }
      name.remove_prefix(metric::kMemoryPrefix.size());
      name.remove_suffix(metric::kBytesSuffix.size());
      const std::int64_t* bytes = std::get_if<std::int64_t>(&value);
      if (bytes == nullptr || *bytes < 0) continue;
      CategoryBytes& row = row_of(run.memory, name);
      row.measured = std::max(row.measured.value_or(0), static_cast<std::uint64_t>(*bytes));
    }
  }
}

std::vector<Sample> read_samples(const std::filesystem::path& path) {
  const std::string text = read_optional(path);
  std::vector<Sample> samples;
  std::size_t begin = 0, line_number = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string name = fmt::format("{}:{}", path.string(), ++line_number);
    const Json json = parse_object(std::string_view(text).substr(begin, end - begin), name);
    try {
      require<DataError>(json.at("step").is_number_integer(), "{}: no integer \"step\"", name);
      samples.push_back({json.at("step").get<std::int64_t>(), json.value("prompt", std::string()),
                         json.at("text").get<std::string>()});
    } catch (const Json::exception& error) {
      fail<DataError>("{}: a sample is {{\"step\":N,\"prompt\":\"...\",\"text\":\"...\"}}: {}",
                      name, error.what());
    }
  }
  return samples;
}

std::optional<double> median(std::vector<Point> points) {
  if (points.empty()) return std::nullopt;
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::nth_element(points.begin(), middle, points.end(),
                   [](const Point& a, const Point& b) { return a.y < b.y; });
  return middle->y;
}

}  // namespace

RunData load_run(const std::filesystem::path& run_dir) {
  RunData run;
  const std::filesystem::path metrics = run_dir / "metrics.jsonl";
  require<RecipeError>(std::filesystem::exists(metrics),
                       "{}: no metrics.jsonl here; give the directory of a run", run_dir.string());
  run.records = read_metrics(metrics, &run.unknown_metrics);
  if (const std::string text = read_optional(run_dir / "run.json"); !text.empty()) {
    flatten(parse_object(text, (run_dir / "run.json").string()), "", run.facts);
  }
  run.name = std::filesystem::weakly_canonical(run_dir).filename().string();
  for (const auto& [key, value] : run.facts) {
    if (key == "name" && !value.empty()) run.name = value;
  }
  read_plan(run_dir / "plan.json", run);
  read_measured_memory(run);
  run.samples = read_samples(run_dir / "samples.jsonl");
  run.recipe = read_optional(run_dir / "resolved.yaml");
  run.starts = read_starts(run_dir);
  if (const std::string text = read_optional(run_dir / "incidents.jsonl"); !text.empty()) {
    const std::string name = (run_dir / "incidents.jsonl").string();
    run.incidents = parse_metrics(text, name, &run.unknown_metrics);
  }
  return run;
}

std::vector<Point> series_of(const std::vector<StepRecord>& records, std::string_view key) {
  std::map<std::int64_t, double> by_step;
  for (const StepRecord& record : records) {
    const std::optional<double> value = record.number(key);
    if (value && std::isfinite(*value)) by_step[record.step] = *value;
  }
  std::vector<Point> points;
  points.reserve(by_step.size());
  for (const auto& [step, value] : by_step) points.push_back({static_cast<double>(step), value});
  return points;
}

StepRecord summarize(const RunData& run) {
  StepRecord facts;
  for (const auto& [key, value] : run.facts) facts.set("run/" + key, value);
  for (const StepRecord& record : run.records) facts.step = std::max(facts.step, record.step);
  facts.set("summary/steps", facts.step);
  facts.set("summary/records", static_cast<std::int64_t>(run.records.size()));
  const auto set = [&facts](std::string_view name, std::optional<double> value) {
    if (value) facts.set(fmt::format("summary/{}", name), *value);
  };
  const auto last = [&run](std::string_view key) -> std::optional<double> {
    const std::vector<Point> points = series_of(run.records, key);
    return points.empty() ? std::nullopt : std::optional<double>(points.back().y);
  };
  const auto by_value = [](const Point& a, const Point& b) { return a.y < b.y; };
  const std::vector<Point> loss = series_of(run.records, metric::kLoss);
  if (!loss.empty()) set("first_loss", loss.front().y);
  set("last_loss", last(metric::kLoss));
  set("trained_share", last(metric::kTrainedShare));
  set("trained_end_share", last(metric::kTrainedEndShare));
  set("last_eval_loss", last(metric::kEvalLoss));
  const std::vector<Point> eval = series_of(run.records, metric::kEvalLoss);
  const auto best = std::min_element(eval.begin(), eval.end(), by_value);
  if (best != eval.end()) set("best_eval_loss", best->y);
  // Of the last evaluation, if it has counted bytes.
  const std::vector<Point> bits = series_of(run.records, metric::kEvalBitsPerByte);
  const bool is_of_last = !bits.empty() && (eval.empty() || bits.back().x >= eval.back().x);
  if (is_of_last) set("last_bits_per_byte", bits.back().y);
  set("tokens", last(metric::kTokens));
  set("step_seconds", median(series_of(run.records, metric::kStepSeconds)));
  set("tokens_per_second", median(series_of(run.records, metric::kTokensPerSecond)));
  set("mfu", median(series_of(run.records, metric::kMfu)));
  const std::vector<Point> peaks = series_of(run.records, metric::kPeakBytes);  // one per start
  const auto peak = std::max_element(peaks.begin(), peaks.end(), by_value);
  if (peak != peaks.end()) set("peak_bytes", peak->y);
  set("elapsed_seconds", last(metric::kElapsedSeconds));
  if (run.starts.empty()) return facts;
  std::int64_t lost = 0;
  for (const Start& start : run.starts) lost += start.lost_steps;
  facts.set("summary/starts", static_cast<std::int64_t>(run.starts.size()));
  facts.set("summary/lost_steps", lost);
  return facts;
}

}  // namespace llmtrain::train
