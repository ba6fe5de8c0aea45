#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/parallel/timeline.hpp"
#include "lib/parallel/timeline_cells.hpp"

namespace llmtrain::parallel {

namespace {

// Pixels.
constexpr int kLeft = 64, kRight = 16, kTop = 40, kRowHeight = 26, kBarHeight = 22,
              kAxisHeight = 30;
constexpr double kMinWidth = 900, kMaxWidth = 16000, kShortestBar = 16, kCharacter = 6.6;

// By kind of action; the second colour is that of every other stage of a rank.
constexpr std::array<std::array<std::string_view, 2>, 4> kFills{{{"#4e79a7", "#a0c4e8"},
                                                                 {"#76619f", "#c6b8df"},
                                                                 {"#59a14f", "#b2dba8"},
                                                                 {"#e08214", "#fdc888"}}};
constexpr std::array<std::string_view, 2> kInks{"#ffffff", "#202020"};
constexpr std::array kKinds{ActionKind::forward, ActionKind::backward, ActionKind::input_grad,
                            ActionKind::weight_grad};

std::string_view fill(ActionKind kind, int chunk) {
  return kFills[static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk % 2)];
}

// 1, 2 or 5 times a power of ten, so that about ten fit.
double tick_seconds(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds / 10)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (seconds / (step * power) <= 12) return step * power;
  }
  return 10 * power;
}

class Svg {
 public:
  Svg(const Schedule& schedule, const Simulation& simulation)
      : schedule_(schedule), simulation_(simulation), cells_(timeline_cells(schedule, simulation)) {
    const double shortest = shortest_action(cells_);
    width_ = shortest == 0
                 ? kMinWidth
                 : std::clamp(simulation.seconds / shortest * kShortestBar, kMinWidth, kMaxWidth);
    pixels_per_second_ = simulation.seconds > 0 ? width_ / simulation.seconds : 0;
  }

  std::string draw() {
    const int rows = static_cast<int>(schedule_.ranks.size()) * kRowHeight;
    const int width = kLeft + static_cast<int>(std::ceil(width_)) + kRight;
    const int height = kTop + rows + kAxisHeight;
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
        "{1}\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"11\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        width, height);
    legend();
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) row(static_cast<int>(r));
    for (const TimelineCell& cell : cells_) bar(cell);
    axis(kTop + rows);
    return text_ + "</svg>\n";
  }

 private:
  double x(double time) const { return kLeft + time * pixels_per_second_; }

  void legend() {
    double left = kLeft;
    for (const ActionKind kind : kKinds) {
      const bool used = std::ranges::any_of(
          cells_, [&](const TimelineCell& cell) { return cell.action.kind == kind; });
      if (!used) continue;
      const std::string label = fmt::format("{} {}", letter(kind), words(kind));
      text_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"22\" fill=\"#202020\">{}</text>\n",
          left, fill(kind, 0), left + 17, label);
      left += 17 + kCharacter * static_cast<double>(label.size()) + 18;
    }
    const bool several =
        std::ranges::any_of(cells_, [](const auto& cell) { return cell.chunk > 0; });
    text_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"22\" fill=\"#202020\">{}{}, bubble {:.1f} %</text>\n",
                    left, several ? "light: every second stage of a rank; " : "",
                    format_duration(simulation_.seconds), 100 * simulation_.bubble_fraction);
  }

  void row(int rank) {
    const int top = kTop + rank * kRowHeight;
    text_ += fmt::format(
        "<text x=\"8\" y=\"{}\" fill=\"#202020\">rank {}</text>"
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"#eeeeee\"/>\n",
        top + 15, rank, kLeft, top, width_, kBarHeight);
  }

  void bar(const TimelineCell& cell) {
    const double width = cell.span.seconds() * pixels_per_second_;
    if (width == 0) return;
    const int top = kTop + cell.row * kRowHeight;
    text_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" "
        "stroke=\"#ffffff\" stroke-width=\"0.5\"><title>{} of micro-batch {} on stage {}, {} to "
        "{}</title></rect>",
        x(cell.span.begin), top, width, kBarHeight, fill(cell.action.kind, cell.chunk),
        words(cell.action.kind), cell.action.micro_batch, cell.action.stage,
        format_duration(cell.span.begin), format_duration(cell.span.end));
    const std::string number = fmt::format("{}", cell.action.micro_batch);
    if (kCharacter * static_cast<double>(number.size()) + 2 <= width) {
      text_ += fmt::format(
          "<text x=\"{:.1f}\" y=\"{}\" fill=\"{}\" text-anchor=\"middle\" "
          "pointer-events=\"none\">{}</text>",
          x((cell.span.begin + cell.span.end) / 2), top + 15,
          kInks[static_cast<std::size_t>(cell.chunk % 2)], number);
    }
    text_ += '\n';
  }

  void axis(int top) {
    if (simulation_.seconds == 0) return;
    const double tick = tick_seconds(simulation_.seconds);
    const int ticks = static_cast<int>(simulation_.seconds / tick * (1 + 1e-9));
    for (int t = 0; t <= ticks; ++t) {
      text_ += fmt::format(
          "<path d=\"M{0:.1f} {1}v5\" stroke=\"#606060\"/><text x=\"{0:.1f}\" y=\"{2}\" "
          "fill=\"#202020\" text-anchor=\"middle\">{3}</text>\n",
          x(t * tick), top, top + 17, format_duration(t * tick));
    }
  }

  const Schedule& schedule_;
  const Simulation& simulation_;
  std::vector<TimelineCell> cells_;
  double width_ = 0, pixels_per_second_ = 0;
  std::string text_;
};

}  // namespace

std::string timeline_svg(const Schedule& schedule, const Simulation& simulation) {
  return Svg(schedule, simulation).draw();
}

}  // namespace llmtrain::parallel
