#include "lib/train/report_runs.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lib/base/units.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/recipe/load.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/report.hpp"
#include "lib/train/report_chart.hpp"
#include "lib/train/report_notes.hpp"

namespace llmtrain::train {

namespace {

std::string seconds_text(double x) { return format_duration(std::clamp(x, 0.0, 1e12)); }
std::string percent_text(double x) { return fmt::format("{:.1f} %", 100 * x); }
std::string fixed_text(double x) { return fmt::format("{:.4f}", x); }
std::string whole_text(double x) { return fmt::format("{:.0f}", x); }
std::string bytes_text(double x) {
  return format_bytes(static_cast<std::uint64_t>(std::clamp(x, 0.0, 0x1p62)));
}

std::optional<double> planned_number(const RunData& run, std::string_view key) {
  for (const auto& [name, text] : run.plan) {
    double value = 0;
    const char* end = text.data() + text.size();
    if (name == key && std::from_chars(text.data(), end, value).ptr == end) return value;
  }
  return std::nullopt;
}

struct Figure {
  std::string_view label, summary, planned;
  std::string (*text)(double);
};

constexpr std::array kPlanned{
    Figure{"step, median", "step_seconds", "predicted_step_seconds", seconds_text},
    Figure{"tokens per second, median", "tokens_per_second", "predicted_tokens_per_second",
           short_number},
    Figure{"MFU, median", "mfu", "predicted_mfu", percent_text},
    Figure{"peak memory", "peak_bytes", "peak_bytes", bytes_text}};

constexpr std::array kCompared{
    Figure{"steps", "steps", "", whole_text},
    Figure{"tokens", "tokens", "", short_number},
    Figure{"training loss, last step", "last_loss", "", fixed_text},
    Figure{"held-out loss", "last_eval_loss", "", fixed_text},
    Figure{"held-out loss, best", "best_eval_loss", "", fixed_text},
    Figure{"held-out bits per byte", "last_bits_per_byte", "", fixed_text},
    Figure{"step, median", "step_seconds", "", seconds_text},
    Figure{"tokens per second, median", "tokens_per_second", "", short_number},
    Figure{"MFU, median", "mfu", "", percent_text},
    Figure{"peak memory", "peak_bytes", "", bytes_text},
    Figure{"training time", "elapsed_seconds", "", seconds_text},
    Figure{"starts", "starts", "", whole_text},
    Figure{"steps made twice", "lost_steps", "", whole_text}};

std::optional<double> figure_of(const StepRecord& facts, std::string_view name) {
  return facts.number(fmt::format("summary/{}", name));
}

std::string date(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min);
}

// The last training loss of each step, finite or not.
std::map<std::int64_t, double> losses_of(const std::vector<StepRecord>& records) {
  std::map<std::int64_t, double> losses;
  for (const StepRecord& record : records) {
    if (const auto loss = record.number(metric::kLoss)) losses[record.step] = *loss;
  }
  return losses;
}

// Where the two series part, among the steps that both have.
std::string parting_text(const RunData& a, const RunData& b) {
  const std::map<std::int64_t, double> of_a = losses_of(a.records);
  std::optional<std::int64_t> first;
  double largest = 0;
  std::int64_t at = 0;
  std::size_t common = 0, not_finite = 0;
  for (const auto& [step, loss] : losses_of(b.records)) {
    const auto found = of_a.find(step);
    if (found == of_a.end()) continue;
    ++common;
    const double other = found->second;
    if (other == loss || (std::isnan(other) && std::isnan(loss))) continue;
    if (!first) first = step;
    const double difference = std::abs(other - loss);
    if (!std::isfinite(difference)) ++not_finite;
    if (std::isfinite(difference) && difference > largest) {
      largest = difference;
      at = step;
    }
  }
  if (common == 0) return "no step has a training loss in both\n";
  if (!first) return fmt::format("training losses of {} steps are equal to the bit\n", common);
  std::string text = fmt::format("training losses part at step {}", *first);
  if (largest > 0) {
    text +=
        fmt::format("; the largest of {} differences is {:.4g}, at step {}", common, largest, at);
  }
  if (not_finite > 0) text += fmt::format("\n{} of the differences are not finite", not_finite);
  return text + "\n";
}

/// The recipe of a run, whatever version wrote it, and keys of it that this one refuses.
struct AnyRecipe {
  Recipe recipe;
  std::set<std::string> refused;
  std::string problem;  // of the file as a whole

  explicit AnyRecipe(const std::filesystem::path& file) {
    for (const recipe::Issue& issue :
         recipe::check(recipe, {.file = file, .builtin = builtin_recipe})) {
      if (issue.key_path.empty()) problem = issue.text();
      refused.insert(issue.key_path);
    }
  }
  /// Whether a change of values ("optimizer.lr: 1 -> 2") is of what was refused.
  bool is_refused(std::string_view change) const {
    return std::ranges::any_of(refused, [&](const std::string& key) {
      return change.starts_with(key + ":") || change.starts_with(key + ".");
    });
  }
};

std::string recipe_differences(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto file = [](const std::filesystem::path& run) { return run / "resolved.yaml"; };
  if (!std::filesystem::exists(file(a)) || !std::filesystem::exists(file(b))) return "";
  const AnyRecipe of_a(file(a)), of_b(file(b));
  std::string refused;
  for (const auto& [name, side] : {std::pair("A", &of_a), std::pair("B", &of_b)}) {
    if (!side->problem.empty()) return fmt::format("no recipes compared: {}\n", side->problem);
    for (const std::string& key : side->refused) refused += fmt::format("  {}: {}\n", name, key);
  }
  std::vector<std::string> changes = recipe::changed_values(of_a.recipe, of_b.recipe);
  std::erase_if(changes, [&](const std::string& change) {
    return of_a.is_refused(change) || of_b.is_refused(change);
  });
  std::string text = changes.empty() ? "the recipes are the same\n" : "recipe, A -> B:\n";
  for (const std::string& change : changes) text += "  " + change + "\n";
  if (refused.empty()) return text;
  return text + "not compared, because this version does not know or refuses them:\n" + refused;
}

}  // namespace

std::string_view unplanned_times(const RunData& run, const StepRecord& facts) {
  const bool is_measured = figure_of(facts, "tokens_per_second").has_value();
  if (run.plan.empty() || !is_measured || planned_number(run, "predicted_step_seconds")) return "";
  return "unknown: run `llmtrain doctor` before a start";
}

std::string planned_section(const RunData& run, const StepRecord& facts) {
  std::string rows;
  for (const Figure& figure : kPlanned) {
    const auto planned = planned_number(run, figure.planned);
    const auto measured = figure_of(facts, figure.summary);
    if (!planned || !measured) continue;
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{:.3f}</td></tr>\n",
        figure.label, figure.text(*planned), figure.text(*measured),
        *planned > 0 ? *measured / *planned : 0.0);
  }
  if (const std::string_view unknown = unplanned_times(run, facts); !unknown.empty()) {
    rows += fmt::format("<tr><td>planned times</td><td colspan=\"3\">{}</td></tr>\n", unknown);
  }
  if (rows.empty()) return "";
  return "<section><h2>Planned and measured</h2>\n<table><thead><tr><th></th>"
         "<th class=\"num\">Planned</th><th class=\"num\">Measured</th>"
         "<th class=\"num\">Measured / planned</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></section>\n";
}

std::string starts_section(const RunData& run) {
  if (run.starts.size() < 2) return "";
  std::string html =
      "<section><h2>Starts</h2>\n<table><thead><tr><th>UTC</th><th>Host</th><th>Job</th>"
      "<th class=\"num\">Ranks</th><th class=\"num\">From step</th>"
      "<th class=\"num\">Steps lost</th></tr></thead><tbody>\n";
  for (const Start& start : run.starts) {
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td></tr>\n",
        date(start.time), html_escape(start.host), html_escape(start.job), start.ranks,
        start.step.value_or(0), start.lost_steps);
  }
  return html + "</tbody></table></section>\n";
}

std::string incidents_section(const RunData& run) {
  if (run.incidents.empty()) return "";
  constexpr std::string_view kSample = "incident/sample/";
  constexpr std::int64_t kShownSamples = 16;
  std::string html =
      "<section><h2>Steps that did not count</h2>\n<table><thead><tr><th class=\"num\">Step</th>"
      "<th>What</th><th>Done</th><th>Samples</th></tr></thead><tbody>\n";
  const auto text = [](const StepRecord& incident, std::string_view key) {
    const MetricValue* value = incident.find(key);
    const auto* found = value == nullptr ? nullptr : std::get_if<std::string>(value);
    return found == nullptr ? std::string() : html_escape(*found);
  };
  const auto what = [&](const StepRecord& incident) {
    const std::string where = text(incident, "incident/where");
    return text(incident, "incident/what") +
           (where.empty() ? "" : fmt::format("<br><small>not finite: {}</small>", where));
  };
  for (const StepRecord& incident : run.incidents) {
    std::string samples =
        fmt::format("{:.0f} to {:.0f}", incident.number("incident/first_sample").value_or(0),
                    incident.number("incident/last_sample").value_or(0));
    if (const auto from = incident.number("incident/left_out_from")) {
      samples += fmt::format(", left out from {:.0f} on", *from);
    }
    std::int64_t of_step = 0;
    for (const auto& [key, value] : incident.fields) {
      if (!key.starts_with(kSample) || ++of_step > kShownSamples) continue;
      samples +=
          fmt::format("<br><small>{}: {}</small>", key.substr(kSample.size()), text(incident, key));
    }
    if (of_step > kShownSamples) {
      samples +=
          fmt::format("<br><small>{} more: incidents.jsonl</small>", of_step - kShownSamples);
    }
    html += fmt::format("<tr><td class=\"num\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        incident.step, what(incident), text(incident, "incident/done"), samples);
  }
  return html + "</tbody></table></section>\n";
}

std::string compare_runs(const std::filesystem::path& a, const std::filesystem::path& b) {
  const RunData run_a = load_run(a), run_b = load_run(b);
  const StepRecord facts_a = summarize(run_a), facts_b = summarize(run_b);
  std::string text = fmt::format("A: {}\nB: {}\n\n  {:<28}{:>14}{:>14}{:>12}\n", a.string(),
                                 b.string(), "", "A", "B", "B / A");
  for (const Figure& figure : kCompared) {
    const auto of_a = figure_of(facts_a, figure.summary);
    const auto of_b = figure_of(facts_b, figure.summary);
    if (!of_a && !of_b) continue;
    const auto cell = [&](const std::optional<double>& value) {
      return value ? figure.text(*value) : std::string("-");
    };
    const bool both = of_a && of_b && *of_a != 0;
    text += fmt::format("  {:<28}{:>14}{:>14}{:>12}\n", figure.label, cell(of_a), cell(of_b),
                        both ? fmt::format("{:.4f}", *of_b / *of_a) : "-");
  }
  text += "\n" + parting_text(run_a, run_b);
  for (const auto& [name, run] : {std::pair("A", &run_a), std::pair("B", &run_b)}) {
    for (const std::string& note : notes_of(*run)) text += fmt::format("{}: {}\n", name, note);
  }
  return text + recipe_differences(a, b);
}

}  // namespace llmtrain::train
