#include "lib/train/report.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/train/report_chart.hpp"
#include "lib/train/report_data.hpp"
#include "lib/train/report_diagnostics.hpp"
#include "lib/train/report_notes.hpp"
#include "lib/train/report_runs.hpp"
#include "lib/train/report_style.hpp"

namespace llmtrain::train {

namespace {

constexpr std::string_view kDataOpening =
    "<script type=\"application/json\" id=\"llmtrain-report\">";
constexpr std::string_view kDataClosing = "</script>";

/// The text of a fact, or nothing.
std::string text_of(const StepRecord& facts, std::string_view key) {
  const MetricValue* value = facts.find(key);
  const std::string* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::string() : *text;
}

std::vector<Chart> charts_of(const RunData& run) {
  const auto series = [&run](std::string_view key) { return series_of(run.records, key); };
  std::vector<Point> mfu_percent = series(metric::kMfu);
  for (Point& p : mfu_percent) p.y *= 100;
  std::vector<Chart> charts = {
      {"loss",
       "Loss",
       "nats per token",
       YScale::data,
       {{"train", series(metric::kLoss)},
        {"held out", series(metric::kEvalLoss), LineStyle::dots}}},
      {"lr",
       "Learning rate",
       "",
       YScale::from_zero,
       {{"lr", series(metric::kLearningRate), LineStyle::exact}}},
      {"grad_norm",
       "Gradient norm",
       "before clipping, log scale",
       YScale::log,
       {{"norm", series(metric::kGradNorm)}}},
      {"update_ratio",
       "Update to weight",
       "median of the parameters, root mean squares, log scale",
       YScale::log,
       {{"ratio", series("update/ratio")}}},
      {"throughput",
       "Throughput",
       "tokens per second",
       YScale::from_zero,
       {{"tokens/s", series(metric::kTokensPerSecond)}}},
      {"mfu", "MFU", "percent of peak", YScale::from_zero, {{"MFU", std::move(mfu_percent)}}}};
  std::erase_if(charts, [](const Chart& chart) {
    return std::all_of(chart.lines.begin(), chart.lines.end(),
                       [](const Line& line) { return line.points.empty(); });
  });
  return charts;
}

/// A label and a value of the row of key figures; nothing where the run did not measure it.
std::string key_figures(const StepRecord& facts) {
  std::string html;
  const auto add = [&](std::string_view label, std::string_view key,
                       const std::function<std::string(double)>& format) {
    const std::optional<double> value = facts.number(fmt::format("summary/{}", key));
    if (!value) return;
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", label, format(*value));
  };
  const auto fixed = [](double x) { return fmt::format("{:.4f}", x); };
  const auto percent = [](double x) { return fmt::format("{:.1f} <small>%</small>", 100 * x); };
  const auto bytes = [](double x) {
    const std::string text = format_bytes(static_cast<std::uint64_t>(std::clamp(x, 0.0, 0x1p62)));
    const std::size_t space = text.find(' ');
    return fmt::format("{} <small>{}</small>", text.substr(0, space), text.substr(space + 1));
  };
  add("Steps", "steps", [](double x) { return fmt::format("{:.0f}", x); });
  add("Tokens trained", "tokens", short_number);
  add("Trained of the tokens, last step", "trained_share", percent);
  add("Ends of documents of those", "trained_end_share", percent);
  add("Training loss, last step", "last_loss", fixed);
  add("Held-out loss", "last_eval_loss", fixed);
  add("Bits per byte, held out", "last_bits_per_byte", fixed);
  add("Tokens per second", "tokens_per_second", short_number);
  add("MFU", "mfu", percent);
  add("Peak memory", "peak_bytes", bytes);
  add("Steps made twice", "lost_steps", [](double x) { return fmt::format("{:.0f}", x); });
  add("Training time", "elapsed_seconds",
      [](double x) { return format_duration(std::clamp(x, 0.0, 1e12)); });
  return "<dl class=\"key\">\n" + html + "</dl>\n";
}

/// Numbers of the plan for a person: bytes in units, whole numbers grouped, others shortened.
std::string plan_value(std::string_view key, const std::string& value) {
  double number = 0;
  const char* end = value.data() + value.size();
  if (std::from_chars(value.data(), end, number).ptr != end || value.empty()) return value;
  if (!(number >= 0 && number < 0x1p53) || number != std::floor(number))
    return short_number(number);
  if (key.ends_with("bytes")) return format_bytes(static_cast<std::uint64_t>(number));
  const std::string digits = fmt::format("{:.0f}", number);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string facts_section(std::string_view title,
                          const std::vector<std::pair<std::string, std::string>>& facts) {
  if (facts.empty()) return "";
  std::string html = fmt::format("<section><h2>{}</h2>\n<dl class=\"facts\">\n", title);
  for (const auto& [key, value] : facts) {
    html +=
        fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(key), html_escape(value));
  }
  return html + "</dl></section>\n";
}

/// One bar: its parts as shares of `scale` bytes.
std::string stacked_bar(std::string_view label, const std::vector<CategoryBytes>& rows,
                        std::optional<std::uint64_t> CategoryBytes::*bytes, double scale) {
  std::string rects;
  double left = 0, total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double width = 1000 * static_cast<double>((rows[i].*bytes).value_or(0)) / scale;
    total += static_cast<double>((rows[i].*bytes).value_or(0));
    if (width <= 0) continue;
    rects += fmt::format("<rect class=\"m{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"1\"/>", i % 9,
                         left, width);
    left += width;
  }
  if (rects.empty()) return "";
  return fmt::format(
      "<span>{}</span><svg viewBox=\"0 0 1000 1\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{} memory by category\">{}</svg><span class=\"num\">{}</span>\n",
      label, label, rects, format_bytes(static_cast<std::uint64_t>(total)));
}

std::string difference(const CategoryBytes& row) {
  if (!row.planned || !row.measured) return "";
  if (*row.planned == *row.measured) return "equal";
  const bool more = *row.measured > *row.planned;
  return (more ? "+" : "&minus;") +
         format_bytes(more ? *row.measured - *row.planned : *row.planned - *row.measured);
}

std::string memory_section(const std::vector<CategoryBytes>& rows) {
  if (rows.empty()) return "";
  double planned = 0, measured = 0;
  for (const CategoryBytes& row : rows) {
    planned += static_cast<double>(row.planned.value_or(0));
    measured += static_cast<double>(row.measured.value_or(0));
  }
  const double scale = std::max({planned, measured, 1.0});
  std::string html =
      "<section><h2>Memory by category</h2>\n<div "
      "class=\"stack\">\n";
  html += stacked_bar("Planned", rows, &CategoryBytes::planned, scale);
  html += stacked_bar("Measured", rows, &CategoryBytes::measured, scale);
  html +=
      "</div>\n<table><thead><tr><th>Category</th><th class=\"num\">Planned</th>"
      "<th class=\"num\">Measured</th><th class=\"num\">Difference</th></tr></thead><tbody>\n";
  const auto cell = [](const std::optional<std::uint64_t>& bytes) {
    return bytes ? format_bytes(*bytes) : std::string("&ndash;");
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    html += fmt::format(
        "<tr><td><i class=\"swatch m{}\"></i>{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td><td class=\"num\">{}</td></tr>\n",
        i % 9, html_escape(rows[i].category), cell(rows[i].planned), cell(rows[i].measured),
        difference(rows[i]));
  }
  return html + "</tbody></table></section>\n";
}

std::string samples_section(const std::vector<Sample>& samples) {
  if (samples.empty()) return "";
  constexpr std::size_t kShown = 2;  // the latest; earlier ones unfold
  std::string html = "<section><h2>Samples</h2>\n";
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[samples.size() - 1 - i];
    if (i == kShown) html += "<details><summary>Earlier samples</summary>\n";
    html += fmt::format(
        "<figure class=\"sample\"><figcaption>step {}</figcaption>"
        "<pre><em>{}</em>{}</pre></figure>\n",
        sample.step, html_escape(sample.prompt), html_escape(sample.text));
  }
  if (samples.size() > kShown) html += "</details>\n";
  return html + "</section>\n";
}

std::string recipe_section(const std::string& recipe) {
  if (recipe.empty()) return "";
  return "<section><h2>Recipe</h2>\n<details><summary>The resolved recipe, all defaults "
         "written out</summary>\n<pre>" +
         html_escape(recipe) + "</pre></details></section>\n";
}

/// JSON inside a script element must not contain the characters that could end it or open a
/// comment.
std::string embedded_json(const StepRecord& facts, const std::vector<Chart>& charts) {
  std::string json = "{\"version\":1,\"facts\":" + to_line(facts) + ",\"charts\":[";
  for (std::size_t i = 0; i < charts.size(); ++i)
    json += (i == 0 ? "\n" : ",\n") + charts[i].json();
  json += "]}";
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string page(const RunData& run) {
  const StepRecord facts = summarize(run);
  const std::vector<Chart> charts = charts_of(run);
  const std::string name = html_escape(run.name);
  std::vector<std::pair<std::string, std::string>> plan = run.plan;
  for (auto& [key, value] : plan) value = plan_value(key, value);
  std::string charts_html;
  for (const Chart& chart : charts) charts_html += chart.html();
  std::string subtitle;
  for (const std::string_view key : {"run/model", "run/device", "run/finished"}) {
    const std::string text = text_of(facts, key);
    if (text.empty()) continue;
    subtitle += (subtitle.empty() ? "" : " &middot; ") + html_escape(text);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0} - llmtrain</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<header><h1>{0}</h1><p class=\"sub\">{2}</p></header>\n{3}"
      "<main>\n<section "
      "class=\"charts\">\n{4}</section>\n{18}{15}{16}{17}{5}{19}{6}{7}{8}{9}</main>\n"
      "<footer>Drawn by llmtrain from {10} records. Horizontal axes count steps. Where a curve has "
      "many points, the thin line is every step and the bold line a moving mean.</footer>\n"
      "{11}{12}{13}\n<script>{14}</script>\n</body>\n</html>\n",
      name, kReportStyle, subtitle, key_figures(facts), charts_html, memory_section(run.memory),
      samples_section(run.samples), facts_section("Run", run.facts), facts_section("Plan", plan),
      recipe_section(run.recipe), run.records.size(), kDataOpening, embedded_json(facts, charts),
      kDataClosing, kReportScript, planned_section(run, facts), starts_section(run),
      incidents_section(run), notes_section(run), diagnostics_section(run));
}

}  // namespace

void write_report(const std::filesystem::path& run_dir, const std::filesystem::path& html) {
  write_file_atomic(html, page(load_run(run_dir)));
}

StepRecord read_report_facts(std::string_view html) {
  const std::size_t opening = html.find(kDataOpening);
  require<DataError>(opening != std::string_view::npos,
                     "not a report of llmtrain: no element \"llmtrain-report\" in it");
  const std::size_t begin = opening + kDataOpening.size();
  const std::size_t end = html.find(kDataClosing, begin);
  require<DataError>(end != std::string_view::npos && html.ends_with("</html>\n"),
                     "the report is cut off; write it again");
  const auto data = nlohmann::ordered_json::parse(html.substr(begin, end - begin), nullptr, false);
  require<DataError>(data.is_object() && data.contains("facts") && data.contains("version") &&
                         data["version"] == 1,
                     "the report's data are damaged or of another version; write it again");
  return parse_metrics(data["facts"].dump() + "\n", "facts of the report").at(0);
}

}  // namespace llmtrain::train
