#include "lib/train/report_chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.hpp"

namespace llmtrain::train {

namespace {

constexpr std::size_t kPlainPoints = 160;  // up to here a line is drawn as it is
constexpr std::size_t kDrawnPoints = 1200;
constexpr std::size_t kMeanPoints = 400;

/// The plot's window and its mapping to the 1000 x 1000 units of the stretched SVG.
struct Axes {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log = false;

  double x(double value) const { return 1000 * (value - x_low) / (x_high - x_low); }
  double y(double value) const {
    const double v = log ? std::log10(value) : value;
    return 1000 * (y_high - v) / (y_high - y_low);
  }
  std::vector<double> y_ticks() const {
    return log ? log_ticks(std::pow(10, y_low), std::pow(10, y_high), 5)
               : linear_ticks(y_low, y_high, 5);
  }
};

/// What is drawn bold: the points, or their mean where there are many.
std::vector<Point> main_line(const Line& line) {
  if (line.points.size() <= kPlainPoints) return line.points;
  if (line.style != LineStyle::noisy) return envelope(line.points, kDrawnPoints);
  return moving_mean(line.points, line.points.size() / 80, kMeanPoints);
}

Axes axes_of(const Chart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axes axes{kInfinity, -kInfinity, kInfinity, -kInfinity, chart.scale == YScale::log};
  for (const Line& line : chart.lines) {
    for (const Point& p : line.points) axes.log = axes.log && p.y > 0;
  }
  for (const Line& line : chart.lines) {
    for (const Point& p : line.points) {
      const double y = axes.log ? std::log10(p.y) : p.y;
      axes = {std::min(axes.x_low, p.x), std::max(axes.x_high, p.x), std::min(axes.y_low, y),
              std::max(axes.y_high, y), axes.log};
    }
  }
  if (!(axes.x_low <= axes.x_high)) axes = {0, 1, 0, 1, false};
  if (axes.x_low <= 1) axes.x_low = 0;
  if (axes.x_high <= axes.x_low) axes.x_high = axes.x_low + 1;
  if (chart.scale == YScale::from_zero) axes.y_low = std::min(axes.y_low, 0.0);
  double margin = 0.05 * (axes.y_high - axes.y_low);
  if (!(margin > 0)) margin = std::max(std::abs(axes.y_high) * 0.05, 1e-9);
  if (chart.scale != YScale::from_zero || axes.y_low < 0) axes.y_low -= margin;
  axes.y_high += margin;
  return axes;
}

std::string path_of(const std::vector<Point>& points, const Axes& axes) {
  std::string path;
  for (const Point& p : points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', axes.x(p.x), axes.y(p.y));
  }
  return path;
}

/// Lines of no length with round ends: dots that the stretching leaves round.
std::string dots_of(const std::vector<Point>& points, const Axes& axes) {
  std::string path;
  for (const Point& p : points) path += fmt::format("M{:.1f} {:.1f}h0", axes.x(p.x), axes.y(p.y));
  return path;
}

std::string exponent_text(double value) {
  const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
  return fmt::format("{:.3g}e{}", value * std::pow(10, -exponent), exponent);
}

/// Labels of one axis share their unit and their decimals.
std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  double largest = 0, gap = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    largest = std::max(largest, std::abs(ticks[i]));
    if (i > 0) gap = std::min(gap, ticks[i] - ticks[i - 1]);
  }
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(gap) + 1e-9)), 0, 9);
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    if (tick == 0) {
      labels.emplace_back("0");
    } else if (largest < 1e-2) {
      labels.push_back(exponent_text(tick));
    } else if (largest < 1e4) {
      labels.push_back(fmt::format("{:.{}f}", tick, std::isfinite(gap) ? decimals : 2));
    } else if (largest < 1e6) {
      labels.push_back(fmt::format("{:.5g}k", tick / 1e3));
    } else {
      labels.push_back(short_number(tick));
    }
  }
  return labels;
}

std::string step_label(double step) {
  if (step < 10000) return fmt::format("{:.0f}", step);
  return step < 1e6 ? fmt::format("{:g}k", step / 1e3) : fmt::format("{:g}M", step / 1e6);
}

std::string lines_svg(const Chart& chart, const Axes& axes) {
  std::string svg;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    const std::vector<Point> bold = main_line(line);
    if (line.style == LineStyle::noisy && bold.size() != line.points.size()) {
      svg += fmt::format("<path class=\"thin c{}\" d=\"{}\"/>", i,
                         path_of(envelope(line.points, kDrawnPoints), axes));
    }
    svg += fmt::format("<path class=\"bold c{}\" d=\"{}\"/>", i, path_of(bold, axes));
    if (line.style == LineStyle::dots || bold.size() == 1) {
      svg += fmt::format("<path class=\"dots c{}\" d=\"{}\"/>", i, dots_of(bold, axes));
    }
  }
  return svg;
}

std::string legend(const Chart& chart) {
  std::string html;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    if (line.points.empty()) continue;
    html += fmt::format("<span><i class=\"c{}\"></i>{} <b>{}</b></span>", i,
                        html_escape(line.label), short_number(main_line(line).back().y));
  }
  return html;
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\0':
        out += "\xEF\xBF\xBD";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size < 1e-3) return exponent_text(value);
  if (size < 1e4) return fmt::format("{:.4g}", value);
  if (size < 1e6) return fmt::format("{:.4g}k", value / 1e3);
  if (size < 1e9) return fmt::format("{:.4g}M", value / 1e6);
  return size < 1e12 ? fmt::format("{:.4g}B", value / 1e9) : fmt::format("{:.3e}", value);
}

std::vector<double> linear_ticks(double low, double high, int target) {
  const double raw = (high - low) / target;
  if (!(raw > 0) || !std::isfinite(raw)) return {};
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  const double step = decade * (raw / decade < 1.5   ? 1
                                : raw / decade < 3.5 ? 2
                                : raw / decade < 7.5 ? 5
                                                     : 10);
  std::vector<double> ticks;
  const auto first = static_cast<long long>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<long long>(std::floor(high / step + 1e-9));
  for (long long i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::vector<double> log_ticks(double low, double high, int target) {
  if (!(low > 0) || !(high > low) || !std::isfinite(high)) return {};
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const auto collect = [&](std::initializer_list<int> multiples, int every) {
    std::vector<double> ticks;
    for (int exponent = first; exponent <= last; ++exponent) {
      if (exponent % every != 0) continue;
      for (const int multiple : multiples) {
        const double tick = multiple * std::pow(10, exponent);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    return ticks;
  };
  std::vector<double> ticks = collect({1, 2, 5}, 1);
  const auto limit = static_cast<std::size_t>(target) + 2;
  for (int every = 1; ticks.size() > limit; ++every) ticks = collect({1}, every);
  return ticks.size() < 2 ? linear_ticks(low, high, target) : ticks;
}

std::vector<Point> envelope(const std::vector<Point>& points, std::size_t limit) {
  if (points.size() <= limit) return points;
  const std::size_t parts = limit / 2;
  std::vector<Point> out;
  out.reserve(2 * parts);
  const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  for (std::size_t part = 0; part < parts; ++part) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(part * points.size() / parts);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>((part + 1) * points.size() / parts);
    auto [low, high] = std::minmax_element(begin, end, lower);
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
  }
  return out;
}

std::vector<Point> moving_mean(const std::vector<Point>& points, std::size_t half_width,
                               std::size_t limit) {
  const std::size_t places = std::min(points.size(), limit);
  std::vector<Point> out;
  out.reserve(places);
  for (std::size_t i = 0; i < places; ++i) {
    const std::size_t centre = places == 1 ? 0 : i * (points.size() - 1) / (places - 1);
    // Steep beginnings need a window that shrinks to keep its centre; the last value is what a
    // reader takes away, so it averages over all that half a window holds.
    const std::size_t back = std::min(half_width, centre);
    const std::size_t ahead = std::min(back, points.size() - 1 - centre);
    double sum = 0;
    for (std::size_t j = centre - back; j <= centre + ahead; ++j) sum += points[j].y;
    out.push_back({points[centre].x, sum / static_cast<double>(back + ahead + 1)});
  }
  return out;
}

std::string Chart::html() const {
  const Axes axes = axes_of(*this);
  std::string grid, labels;
  const std::vector<double> ticks = axes.y_ticks();
  const std::vector<std::string> tick_texts = tick_labels(ticks);
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double y = axes.y(ticks[i]);
    grid += fmt::format("M0 {:.1f}H1000", y);
    labels +=
        fmt::format("<span class=\"y\" style=\"top:{:.2f}%\">{}</span>", y / 10, tick_texts[i]);
  }
  std::vector<double> steps = linear_ticks(axes.x_low, axes.x_high, 6);
  std::erase_if(steps, [](double step) { return step != std::floor(step); });
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // A narrow screen shows every other label.
    labels += fmt::format("<span class=\"x{}\" style=\"left:{:.2f}%\">{}</span>",
                          i % 2 == 1 && steps.size() > 6 ? " wide" : "", axes.x(steps[i]) / 10,
                          step_label(steps[i]));
  }
  return fmt::format(
      "<figure class=\"chart\" id=\"{}\"><figcaption><h3>{}</h3><span class=\"unit\">{}</span>"
      "<span class=\"legend\">{}</span></figcaption><div class=\"plot\">"
      "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{} by step\"><path class=\"grid\" d=\"{}\"/>{}</svg>{}"
      "<div class=\"cursor\" hidden></div><div class=\"tip\" hidden></div></div></figure>\n",
      id, html_escape(title), html_escape(unit), legend(*this), html_escape(title), grid,
      lines_svg(*this, axes), labels);
}

std::string Chart::json() const {
  const Axes axes = axes_of(*this);
  nlohmann::ordered_json chart{{"id", id}, {"x", {axes.x_low, axes.x_high}}};
  chart["lines"] = nlohmann::ordered_json::array();
  for (const Line& line : lines) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const Point& p : main_line(line)) {
      points.push_back({p.x, short_number(p.y)});
    }
    chart["lines"].push_back({{"label", line.label}, {"points", std::move(points)}});
  }
  return chart.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace llmtrain::train
