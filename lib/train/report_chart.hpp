#pragma once
/// Line charts as HTML and SVG. The lines live in an SVG that is stretched to the plot's size with
/// strokes of constant width; the tick labels are HTML, so that text keeps its size on any screen.

#include <string>
#include <string_view>
#include <vector>

#include "lib/train/report_data.hpp"

namespace llmtrain::train {

/// Text safe inside an element and inside a quoted attribute; bytes that are not UTF-8 are
/// replaced.
std::string html_escape(std::string_view text);

/// A number with four significant digits for a person: "1.234", "12.3k", "3e-4".
std::string short_number(double value);

/// Ticks at 1, 2 or 5 times a power of ten inside [low, high], about `target` of them.
std::vector<double> linear_ticks(double low, double high, int target);
/// Ticks at powers of ten inside [low, high], with their multiples by 2 and 5 where there is room.
std::vector<double> log_ticks(double low, double high, int target);

/// At most `limit` points: the smallest and the largest value of each of limit/2 equal parts.
std::vector<Point> envelope(const std::vector<Point>& points, std::size_t limit);
/// Moving mean over up to 2*half_width+1 points, at `limit` or fewer equally spaced places.
std::vector<Point> moving_mean(const std::vector<Point>& points, std::size_t half_width,
                               std::size_t limit);

enum class YScale { data, from_zero, log };

enum class LineStyle {
  exact,  // drawn as it is
  noisy,  // many points: thin as they are, bold as their moving mean
  dots,   // few, separate measurements: each point is marked
};

struct Line {
  std::string label;
  std::vector<Point> points;
  LineStyle style = LineStyle::noisy;
};

struct Chart {
  std::string id;     // [a-z_]+
  std::string title;  // plain text
  std::string unit;   // plain text
  YScale scale = YScale::data;
  std::vector<Line> lines;  // at most two

  /// A `<figure>`.
  std::string html() const;
  /// What the pointer shows, as JSON:
  /// {"id":...,"x":[low,high],"lines":[{"label":...,"points":[[x,y]...]}]}.
  std::string json() const;
};

}  // namespace llmtrain::train
