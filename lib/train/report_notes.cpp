#include "lib/train/report_notes.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lib/base/utf8.hpp"
#include "lib/recipe/load.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/report_chart.hpp"

namespace llmtrain::train {

namespace {

constexpr std::size_t kShown = 5;  // of each kind

// The recipe may be of another version: only this one key of it counts.
std::int64_t metrics_interval(const std::string& recipe_text) {
  Recipe recipe;
  recipe::check(recipe, {.file = "resolved.yaml", .text = recipe_text});
  const auto& interval = recipe.metrics.interval;
  if (!interval.is_set() || interval.is_refused()) return 1;
  return static_cast<std::int64_t>(interval().value);
}

// Of up to nine distances, the n-th in the middle.
std::int64_t usual_distance(const std::vector<std::int64_t>& distances, std::size_t n) {
  constexpr std::size_t kReach = 4;
  const std::size_t begin = n - std::min(n, kReach);
  const std::size_t end = std::min(distances.size(), n + kReach + 1);
  std::vector<std::int64_t> around(distances.begin() + static_cast<std::ptrdiff_t>(begin),
                                   distances.begin() + static_cast<std::ptrdiff_t>(end));
  const auto middle = around.begin() + static_cast<std::ptrdiff_t>((around.size() - 1) / 2);
  std::nth_element(around.begin(), middle, around.end());
  return *middle;
}

}  // namespace

std::vector<StepGap> gaps_of(const std::vector<StepRecord>& records, std::int64_t interval) {
  std::set<std::int64_t> steps{0};
  for (const StepRecord& record : records) {
    if (record.find(metric::kLoss) != nullptr) steps.insert(record.step);
  }
  const std::vector<std::int64_t> in_order(steps.begin(), steps.end());
  std::vector<std::int64_t> distances;
  for (std::size_t n = 1; n < in_order.size(); ++n) {
    distances.push_back(in_order[n] - in_order[n - 1]);
  }
  std::vector<StepGap> gaps;
  for (std::size_t n = 0; n < distances.size(); ++n) {
    if (distances[n] <= interval) continue;
    // Step 1 has a record, too, so that distances of one interval differ a little.
    const bool is_longer = distances[n] > usual_distance(distances, n) * 3 / 2;
    if (is_longer) gaps.push_back({in_order[n], in_order[n + 1]});
  }
  return gaps;
}

std::vector<std::string> notes_of(const RunData& run) {
  std::vector<std::string> notes;
  const std::vector<StepGap> gaps = gaps_of(run.records, metrics_interval(run.recipe));
  for (std::size_t n = 0; n < std::min(gaps.size(), kShown); ++n) {
    notes.push_back(fmt::format("metrics.jsonl has no training loss between steps {} and {}",
                                gaps[n].before, gaps[n].after));
  }
  if (gaps.size() > kShown) notes.push_back(fmt::format("and {} more gaps", gaps.size() - kShown));
  std::size_t shown = 0;
  for (const std::string& key : run.unknown_metrics) {
    if (++shown > kShown) break;
    notes.push_back(fmt::format("this version does not know metric {}", escape_controls(key)));
  }
  if (run.unknown_metrics.size() > kShown) {
    notes.push_back(fmt::format("nor {} others", run.unknown_metrics.size() - kShown));
  }
  return notes;
}

std::string notes_section(const RunData& run) {
  const std::vector<std::string> notes = notes_of(run);
  if (notes.empty()) return "";
  std::string html = "<section><h2>Of the records</h2>\n<ul>\n";
  for (const std::string& note : notes) html += fmt::format("<li>{}</li>\n", html_escape(note));
  return html + "</ul></section>\n";
}

}  // namespace llmtrain::train
