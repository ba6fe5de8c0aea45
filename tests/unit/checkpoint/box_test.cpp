#include "lib/checkpoint/box.hpp"

#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"

namespace llmtrain::checkpoint {

namespace {

/// Counts by brute force how often each element of `global` is covered.
std::vector<int> coverage(const Dims& global, const std::vector<Box>& boxes) {
  std::vector<int> counts(static_cast<std::size_t>(*num_elements(global)), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (const Box& box : boxes) {
      auto rest = static_cast<std::int64_t>(i);
      bool inside = true;
      for (std::size_t d = global.size(); d-- > 0;) {
        const std::int64_t at = rest % global[d];
        rest /= global[d];
        inside = inside && at >= box.offset[d] && at < box.offset[d] + box.shape[d];
      }
      counts[i] += inside ? 1 : 0;
    }
  }
  return counts;
}

bool all_once(const std::vector<int>& counts) {
  return std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
}

}  // namespace

TEST_CASE("num_elements refuses negative dims and every overflow, even behind a zero") {
  CHECK(num_elements({}) == 1);
  CHECK(num_elements({3, 0, 5}) == 0);
  CHECK(num_elements({1 << 20, 1 << 20}) == std::int64_t{1} << 40);
  CHECK_FALSE(num_elements({-1}).has_value());
  CHECK_FALSE(num_elements({std::int64_t{1} << 32, std::int64_t{1} << 32}).has_value());
  CHECK_FALSE(num_elements({std::int64_t{1} << 32, std::int64_t{1} << 32, 0}).has_value());
  CHECK_FALSE(num_elements({std::int64_t{1} << 57}).has_value());
}

TEST_CASE("tile_exactly agrees with counting every element, over random sets of boxes") {
  const PhiloxKey key = philox_key(1, "test", "tile");
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(
        philox_below(key, 0, draw++, static_cast<std::uint64_t>(bound)));
  };
  int num_exact = 0;
  for (int round = 0; round < 400; ++round) {
    Dims global;
    for (std::int64_t d = 1 + below(3); d-- > 0;) global.push_back(1 + below(3));
    std::vector<Box> boxes{{Dims(global.size(), 0), global}};
    for (std::int64_t splits = below(5); splits-- > 0;) {
      const auto victim = static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())));
      const auto dim = static_cast<std::size_t>(below(static_cast<std::int64_t>(global.size())));
      Box low = boxes[victim];
      Box high = low;
      low.shape[dim] = below(low.shape[dim] + 1);
      high.offset[dim] += low.shape[dim];
      high.shape[dim] -= low.shape[dim];
      boxes[victim] = low;
      boxes.push_back(high);
    }
    if (round % 2 == 1) {  // damage one box
      Box& box = boxes[static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())))];
      const auto dim = static_cast<std::size_t>(below(static_cast<std::int64_t>(global.size())));
      box.offset[dim] = below(global[dim]);
      box.shape[dim] = below(global[dim] - box.offset[dim] + 1);
    }
    const bool exact = all_once(coverage(global, boxes));
    num_exact += exact ? 1 : 0;

    CHECK(tile_exactly(global, boxes) == exact);
  }
  CHECK(num_exact > 200);
  CHECK(num_exact < 400);
}

TEST_CASE("tile_exactly sees duplicates, gaps of equal volume, boxes outside and odd tilings") {
  const Dims global{4, 4};
  const std::vector<Box> pinwheel{
      {{0, 0}, {1, 3}}, {{0, 3}, {3, 1}}, {{3, 1}, {1, 3}}, {{1, 0}, {3, 1}}, {{1, 1}, {2, 2}}};
  CHECK(tile_exactly(global, pinwheel));
  CHECK_FALSE(tile_exactly(global, std::vector<Box>{{{0, 0}, {2, 4}}, {{0, 0}, {2, 4}}}));
  CHECK_FALSE(tile_exactly(global, std::vector<Box>{{{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}}));
  CHECK_FALSE(tile_exactly(global, std::vector<Box>{{{0, 0}, {4, 5}}}));
  CHECK_FALSE(tile_exactly(global, std::vector<Box>{{{0}, {16}}}));
  CHECK_FALSE(tile_exactly(global, std::vector<Box>{}));
  CHECK(tile_exactly({}, std::vector<Box>{{}}));
  CHECK_FALSE(tile_exactly({}, std::vector<Box>{{}, {}}));
  CHECK(tile_exactly({0, std::int64_t{1} << 55}, std::vector<Box>{}));
}

TEST_CASE("boxes_of_range: every range becomes few boxes whose elements are the range in order") {
  for (const Dims& global :
       {Dims{}, Dims{7}, Dims{3, 5}, Dims{3, 1, 4}, Dims{2, 3, 2, 2}, Dims{2, 2, 2, 2, 2}}) {
    const std::int64_t elements = *num_elements(global);
    for (std::int64_t begin = 0; begin <= elements; ++begin) {
      for (std::int64_t end = begin; end <= elements; ++end) {
        const std::vector<Box> boxes = boxes_of_range(global, begin, end);
        const std::vector<int> counts = coverage(global, boxes);
        std::vector<int> expected(counts.size(), 0);
        std::fill(expected.begin() + begin, expected.begin() + end, 1);
        CHECK(counts == expected);
        CHECK(boxes.size() <=
              std::max<std::size_t>(1, 2 * global.size() - (global.empty() ? 0 : 1)));
        std::int64_t at = begin;
        for (const Box& box : boxes) {
          std::vector<Run> runs;
          for_each_run({Dims(global.size(), 0), global}, box,
                       [&](const Run& run) { runs.push_back(run); });
          REQUIRE(runs.size() == 1);
          CHECK(runs[0].from == at);
          at += runs[0].count;
        }
      }
    }
  }
}

TEST_CASE("for_each_run joins rows that are whole on both sides and no others") {
  std::vector<Run> runs;
  const auto collect = [&](const Box& source, const Box& target) {
    runs.clear();
    for_each_run(source, target, [&](const Run& run) { runs.push_back(run); });
    return runs.size();
  };
  const Box whole{{0, 0, 0}, {4, 3, 2}};
  CHECK(collect(whole, whole) == 1);
  CHECK(runs[0].count == 24);
  CHECK(collect(whole, {{1, 0, 0}, {2, 3, 2}}) == 1);
  CHECK(runs[0].from == 6);
  CHECK(collect(whole, {{0, 1, 0}, {4, 2, 2}}) == 4);
  CHECK(runs[3].from == 20);
  CHECK(runs[3].to == 12);
  CHECK(collect(whole, {{0, 0, 1}, {4, 3, 1}}) == 12);
  CHECK(collect({{0, 0, 0}, {2, 3, 2}}, {{2, 0, 0}, {2, 3, 2}}) == 0);
}

}  // namespace llmtrain::checkpoint
