// Shingles and sketches against datasketch, see scripts/golden/near_duplicates.py.
#include <cmath>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/data/near_duplicates.hpp"
#include "lib/data/similarity_sketch.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::vector<std::uint64_t> shingles_of(std::string_view text) {
  std::vector<std::uint64_t> shingles;
  append_shingles(text, {}, shingles);
  return shingles;
}

std::string joined(std::uint64_t seed, std::size_t percent) {
  const std::string first = generated_document(seed);
  const std::string second = generated_document(seed + 1000);
  return first.substr(0, first.find(' ', first.size() * percent / 100)) +
         second.substr(second.find(' ', second.size() * percent / 100));
}

double jaccard(const std::set<std::uint64_t>& a, const std::set<std::uint64_t>& b) {
  double common = 0;
  for (const std::uint64_t element : a) common += b.contains(element) ? 1 : 0;
  return common / (static_cast<double>(a.size() + b.size()) - common);
}

}  // namespace

TEST_CASE("shingles have the exact similarity of an independent program, sketches its error") {
  const NearDuplicateOptions options;
  const auto golden =
      nlohmann::json::parse(read_file(test_file("unit/data/golden/near_duplicates.json")));
  REQUIRE(golden.size() > 50);
  Sketcher sketcher(options.permutations);
  double own_squares = 0, other_squares = 0;
  int differ = 0;
  for (const auto& pair : golden) {
    CAPTURE(pair.dump());
    const auto seed = pair.at("seed").get<std::uint64_t>();
    const auto whole = shingles_of(generated_document(seed));
    const auto other = shingles_of(joined(seed, pair.at("percent").get<std::size_t>()));
    const double exact = pair.at("jaccard").get<double>();
    CHECK(jaccard({whole.begin(), whole.end()}, {other.begin(), other.end()}) ==
          doctest::Approx(exact).epsilon(1e-12));

    std::vector<std::uint32_t> sketches(2 * options.permutations);
    const std::span<std::uint32_t> both(sketches);
    sketcher.sketch(whole, both.first(options.permutations));
    sketcher.sketch(other, both.last(options.permutations));
    const double estimate =
        estimated_jaccard(both.first(options.permutations), both.last(options.permutations));
    own_squares += (estimate - exact) * (estimate - exact);
    other_squares += std::pow(pair.at("estimate").get<double>() - exact, 2);

    NearDuplicateIndex index(options, sketches);
    index.add(0);
    const bool found = index.find(1).has_value();
    if (exact >= 0.8) CHECK(found);
    if (exact < 0.6) CHECK(!found);
    differ += found != pair.at("found").get<bool>() ? 1 : 0;
  }
  MESSAGE("mean square error ", own_squares / static_cast<double>(golden.size()), ", datasketch ",
          other_squares / static_cast<double>(golden.size()), "; found by one alone: ", differ);
  CHECK(own_squares <= 1.5 * other_squares);
}

}  // namespace llmtrain::data
