#include "lib/train/report_chart.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"

namespace llmtrain::train {

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(linear_ticks(0, 2000, 5) == std::vector<double>{0, 500, 1000, 1500, 2000});
  CHECK(linear_ticks(-1, 1, 4) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
  CHECK(linear_ticks(1, 1, 5).empty());
  CHECK(linear_ticks(0, INFINITY, 5).empty());
  CHECK(log_ticks(0.2, 6, 5) == std::vector<double>{0.2, 0.5, 1, 2, 5});
  for (const double high : {2.0, 1e3, 1e9, 1e300}) {
    const std::vector<double> ticks = log_ticks(1.5, high, 5);
    CAPTURE(high);
    CHECK(ticks.size() >= 2);
    CHECK(ticks.size() <= 9);
  }
}

TEST_CASE("thinning keeps every extreme and the order, the mean keeps a straight line") {
  std::vector<Point> points;
  const auto by_x = [](const Point& a, const Point& b) { return a.x < b.x; };
  for (int i = 0; i < 5000; ++i) points.push_back({static_cast<double>(i), -2.0 * i});
  const std::vector<Point> falling = envelope(points, 100);
  CHECK(std::is_sorted(falling.begin(), falling.end(), by_x));
  for (Point& p : points) p.y = 2 * p.x;
  points[1234].y = -1e6;
  points[4321].y = 1e6;

  const std::vector<Point> thin = envelope(points, 100);

  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  const auto [low, high] = std::minmax_element(thin.begin(), thin.end(), by_y);
  CHECK(thin.size() <= 100);
  CHECK(low->x == 1234);
  CHECK(high->x == 4321);
  CHECK(std::is_sorted(thin.begin(), thin.end(), by_x));
  points.resize(1000);
  for (const Point& p : moving_mean(points, 20, 50)) {
    if (p.x < 970) CHECK(p.y == test::relative(2 * p.x));  // one-sided only at the end
  }
}

TEST_CASE("numbers for people keep four digits") {
  CHECK(short_number(1.23456) == "1.235");
  CHECK(short_number(27130.0) == "27.13k");
  CHECK(short_number(3e-4) == "3e-4");
  CHECK(short_number(0.001) == "0.001");
  CHECK(short_number(0) == "0");
  CHECK(html_escape("<a href=\"x\">'&'</a>") ==
        "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

}  // namespace llmtrain::train
