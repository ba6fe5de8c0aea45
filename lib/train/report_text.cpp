#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/units.hpp"
#include "lib/train/report.hpp"
#include "lib/train/report_chart.hpp"
#include "lib/train/report_data.hpp"
#include "lib/train/report_notes.hpp"
#include "lib/train/report_runs.hpp"

namespace llmtrain::train {

namespace {

constexpr int kColumns = 66;
constexpr int kRows = 14;

struct Canvas {
  double x_high = 1, y_low = 0, y_high = 1;
  std::vector<std::string> rows = std::vector<std::string>(kRows, std::string(kColumns, ' '));

  void mark(const Point& point, char symbol) {
    const double x = point.x / x_high, y = (point.y - y_low) / (y_high - y_low);
    const int column =
        std::clamp(static_cast<int>(std::lround(x * (kColumns - 1))), 0, kColumns - 1);
    const int row = std::clamp(static_cast<int>(std::lround((1 - y) * (kRows - 1))), 0, kRows - 1);
    rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = symbol;
  }
};

/// One point per column: the mean of the steps that fall into it.
std::vector<Point> by_column(const std::vector<Point>& points, double x_high) {
  std::vector<Point> sums(kColumns);
  std::vector<int> counts(kColumns, 0);
  for (const Point& p : points) {
    const auto column = static_cast<std::size_t>(std::lround(p.x / x_high * (kColumns - 1)));
    sums[column].x += p.x;
    sums[column].y += p.y;
    ++counts[column];
  }
  std::vector<Point> means;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) means.push_back({sums[i].x / counts[i], sums[i].y / counts[i]});
  }
  return means;
}

std::string curve(std::vector<Point> train, const std::vector<Point>& eval) {
  Canvas canvas;
  for (const std::vector<Point>* points : {&std::as_const(train), &eval}) {
    for (const Point& p : *points) canvas.x_high = std::max(canvas.x_high, p.x);
  }
  train = by_column(train, canvas.x_high);
  std::vector<Point> all = train;
  all.insert(all.end(), eval.begin(), eval.end());
  if (all.empty()) return "no loss has been recorded yet\n";
  const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  canvas.y_low = std::min_element(all.begin(), all.end(), lower)->y;
  canvas.y_high = std::max_element(all.begin(), all.end(), lower)->y;
  if (canvas.y_high <= canvas.y_low) canvas.y_high = canvas.y_low + 1;
  for (const Point& p : train) canvas.mark(p, '*');
  for (const Point& p : eval) canvas.mark(p, 'o');

  std::string text =
      eval.empty() ? "loss (nats per token)\n" : "loss (nats per token; * training, o held out)\n";
  for (int row = 0; row < kRows; ++row) {
    const double y = canvas.y_high - (canvas.y_high - canvas.y_low) * row / (kRows - 1);
    const std::string label = row % 3 == 0 || row == kRows - 1 ? fmt::format("{:.3f}", y) : "";
    std::string line = fmt::format("{:>9} |{}", label, canvas.rows[static_cast<std::size_t>(row)]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  text += fmt::format("{:>9} +{:->{}}\n", "", "", kColumns);
  return text + fmt::format("{:>11}{:<{}}{:>8.0f}\n", "", "0 steps", kColumns - 8, canvas.x_high);
}

}  // namespace

std::string text_report(const std::filesystem::path& run_dir) {
  const RunData run = load_run(run_dir);
  const StepRecord facts = summarize(run);
  std::string text =
      curve(series_of(run.records, metric::kLoss), series_of(run.records, metric::kEvalLoss));
  const auto add = [&](std::string_view label, std::string_view key, auto format) {
    const std::optional<double> value = facts.number(fmt::format("summary/{}", key));
    if (value) text += fmt::format("  {:<28}{:>12}\n", label, format(*value));
  };
  const auto fixed = [](double x) { return fmt::format("{:.4f}", x); };
  const auto whole = [](double x) { return fmt::format("{:.0f}", x); };
  text += "\n";
  add("steps", "steps", whole);
  add("tokens", "tokens", short_number);
  add("training loss, first step", "first_loss", fixed);
  add("training loss, last step", "last_loss", fixed);
  add("held-out loss", "last_eval_loss", fixed);
  add("held-out bits per byte", "last_bits_per_byte", fixed);
  add("tokens per second", "tokens_per_second", short_number);
  add("training time", "elapsed_seconds",
      [](double x) { return format_duration(std::clamp(x, 0.0, 1e12)); });
  const std::string_view unknown = unplanned_times(run, facts);
  if (!unknown.empty()) text += fmt::format("  {:<28}{}\n", "planned times", unknown);
  if (run.starts.size() > 1) {
    add("starts", "starts", whole);
    add("steps made twice", "lost_steps", whole);
  }
  for (const std::string& note : notes_of(run)) text += note + "\n";
  return text;
}

}  // namespace llmtrain::train
