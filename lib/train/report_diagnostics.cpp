#include "lib/train/report_diagnostics.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/units.hpp"
#include "lib/train/report_chart.hpp"

namespace llmtrain::train {

namespace {

struct Kind {
  std::string_view key, title;
};
constexpr std::array<Kind, 3> kKinds{
    {{"gradient", "Gradients"},
     {"weight", "Weights"},
     {"activation", "Inputs of linear layers, outputs of blocks"}}};

struct Column {
  std::string_view key, title;
  bool is_share;
};
constexpr std::array<Column, 9> kColumns{{{"rms", "RMS", false},
                                          {"p50", "median", false},
                                          {"p99", "99 %", false},
                                          {"amax", "largest", false},
                                          {"kurtosis", "kurtosis", false},
                                          {"zeros", "zero", true},
                                          {"fp16_underflow", "lost in FP16", true},
                                          {"e4m3_underflow", "in E4M3", true},
                                          {"e5m2_underflow", "in E5M2", true}}};

std::string cell(const StepRecord& record, const Kind& kind, const Column& column,
                 std::string_view tensor) {
  const auto number = [&](std::string_view what) {
    return record.number(fmt::format("{}/{}/{}", kind.key, what, tensor));
  };
  const std::optional<double> value = number(column.key);
  if (!value) return "&ndash;";
  if (!column.is_share) return fmt::format("{:.3g}", *value);
  const double count = std::max(1.0, number("count").value_or(1));
  return *value == 0 ? "0" : fmt::format("{:.2g} %", 100 * *value / count);
}

/// Names of the tensors of a kind, in the order of the record.
std::vector<std::string> tensors_of(const StepRecord& record, const Kind& kind) {
  const std::string prefix = fmt::format("{}/count/", kind.key);
  std::vector<std::string> names;
  for (const auto& [key, value] : record.fields) {
    if (key.starts_with(prefix)) names.push_back(key.substr(prefix.size()));
  }
  return names;
}

std::string table(const StepRecord& record, const Kind& kind) {
  const std::vector<std::string> tensors = tensors_of(record, kind);
  if (tensors.empty()) return "";
  const bool moves = kind.key == "weight";
  std::string html =
      fmt::format("<details><summary>{}</summary>\n<table><thead><tr><th>Tensor</th>", kind.title);
  for (const Column& column : kColumns) {
    html += fmt::format("<th class=\"num\">{}</th>", column.title);
  }
  html +=
      moves ? "<th class=\"num\">moved by</th></tr></thead><tbody>\n" : "</tr></thead><tbody>\n";
  for (const std::string& tensor : tensors) {
    html += fmt::format("<tr><td>{}</td>", html_escape(tensor));
    for (const Column& column : kColumns) {
      html += fmt::format("<td class=\"num\">{}</td>", cell(record, kind, column, tensor));
    }
    if (moves) {
      const std::optional<double> ratio = record.number("update/ratio/" + tensor);
      html += fmt::format("<td class=\"num\">{}</td>",
                          ratio ? fmt::format("{:.2g}", *ratio) : std::string("&ndash;"));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></details>\n";
}

}  // namespace

std::optional<double> noise_scale(const std::vector<StepRecord>& records) {
  double variance = 0, gradient = 0;
  for (const StepRecord& record : records) {
    variance += record.number("noise/variance").value_or(0);
    gradient += record.number("noise/squared_gradient").value_or(0);
  }
  if (!(variance > 0 && gradient > 0)) return std::nullopt;
  return variance / gradient;
}

std::string diagnostics_section(const RunData& run) {
  const auto last =
      std::find_if(run.records.rbegin(), run.records.rend(),
                   [](const StepRecord& record) { return record.find("gradient/rms") != nullptr; });
  if (last == run.records.rend()) return "";
  std::string html = fmt::format(
      "<section><h2>Tensors of step {}</h2>\n<p>Gradients are those before clipping; "
      "what E4M3 and E5M2 lose becomes zero when the largest magnitude of the tensor is "
      "scaled to theirs.",
      last->step);
  if (const auto scale = noise_scale(run.records)) {
    html += fmt::format(
        " Noise scale of the gradients, over all steps that were looked at: {} tokens "
        "a step.",
        short_number(*scale));
  }
  html += "</p>\n";
  for (const Kind& kind : kKinds) html += table(*last, kind);
  return html + "</section>\n";
}

}  // namespace llmtrain::train
