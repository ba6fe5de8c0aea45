// Cuts of ZeRO slices: where they may be, that they leave nothing out, and how even they are.
#include "lib/param/slices.hpp"

#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

using namespace llmtrain;

namespace {

using Unit = std::vector<SlicedTensor>;
using Counts = std::vector<std::int64_t>;

// A cut is the border of a tensor, or a multiple of the granule within one that may be cut.
bool may_be_cut(const Unit& unit, std::int64_t at) {
  for (const SlicedTensor& tensor : unit) {
    if (at <= tensor.elements) {
      return at == 0 || at == tensor.elements || at % tensor.step == 0;
    }
    at -= tensor.elements;
  }
  return false;
}

}  // namespace

TEST_CASE("cuts are where they may be, ascend, and cover the line") {
  const Unit block{{64}, {64 * 96}, {7}, {5000, 5000}, {9 * 3072, 3072}, {100'003}};
  for (int ranks = 1; ranks <= 9; ++ranks) {
    CAPTURE(ranks);
    const Counts cuts = slice_cuts(block, ranks);
    REQUIRE(std::ssize(cuts) == ranks + 1);
    CHECK(cuts.front() == 0);
    CHECK(cuts.back() == 64 + 64 * 96 + 7 + 5000 + 9 * 3072 + 100'003);
    CHECK(std::is_sorted(cuts.begin(), cuts.end()));
    for (const std::int64_t cut : cuts) CHECK(may_be_cut(block, cut));
  }
}

TEST_CASE("slices of element-wise tensors are even but for the granule") {
  const Unit unit{{1'000'000}, {333}, {3000}};
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    const Counts cuts = slice_cuts(unit, ranks);
    for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
      const auto share = static_cast<double>(cuts.back()) / ranks;
      CHECK(std::abs(static_cast<double>(cuts[r + 1] - cuts[r]) - share) <=
            static_cast<double>(kSliceElements) + 1);
    }
  }
}

TEST_CASE("cuts of known lines") {
  CHECK(slice_cuts(Unit{{4096}}, 4) == Counts{0, 1024, 2048, 3072, 4096});
  CHECK(slice_cuts(Unit{{4096, 4096}}, 2) == Counts{0, 0, 4096});
  CHECK(slice_cuts(Unit{{4 * 3072, 3072}}, 3) == Counts{0, 3072, 9216, 12288});
  CHECK(slice_cuts(Unit{{1000, 1000}, {1000, 1000}, {1000, 1000}}, 3) ==
        Counts{0, 1000, 2000, 3000});
  CHECK(slice_cuts(Unit{{1023}}, 3) == Counts{0, 0, 1023, 1023});  // smaller: whole
  CHECK(slice_cuts(Unit{{3072}}, 2) == Counts{0, 1024, 3072});     // the lower of two
  CHECK(slice_cuts(Unit{}, 2) == Counts{0, 0, 0});
}

TEST_CASE("counts of a range are its parts by owner") {
  const Counts cuts{0, 1024, 1024, 4096, 5000};
  CHECK(slice_counts(cuts, 0, 5000) == Counts{1024, 0, 3072, 904});
  CHECK(slice_counts(cuts, 1000, 2000) == Counts{24, 0, 976, 0});
  CHECK(slice_counts(cuts, 4096, 4096) == Counts{0, 0, 0, 0});
}
