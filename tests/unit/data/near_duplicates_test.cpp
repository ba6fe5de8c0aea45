#include "lib/data/near_duplicates.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/splitmix64.hpp"
#include "lib/data/similarity_sketch.hpp"

namespace llmtrain::data {

namespace {

std::vector<std::uint64_t> shingles(std::string_view text, ShingleOptions options) {
  std::vector<std::uint64_t> out;
  append_shingles(text, options, out);
  return out;
}

constexpr ShingleOptions words(std::uint32_t size) { return {ShingleUnit::words, size}; }
constexpr ShingleOptions characters(std::uint32_t size) { return {ShingleUnit::characters, size}; }

// Two sets of random elements with `common` in both and `own` in each alone.
struct TwoSets {
  std::vector<std::uint64_t> a, b;
  TwoSets(SplitMix64& random, std::size_t common, std::size_t own) {
    for (std::size_t i = 0; i < common; ++i) {
      a.push_back(random());
      b.insert(b.begin(), a.back());
    }
    for (std::size_t i = 0; i < own; ++i) {
      a.push_back(random());
      b.push_back(random());
    }
  }
};

}  // namespace

TEST_CASE("word shingles are runs of words without case, punctuation and place") {
  CHECK(shingles("int main() { return my_Value2; }", words(2)).size() == 3);
  CHECK(shingles("A, b -- c\n\nD!", words(2)) == shingles("a b;C d", words(2)));
  const auto long_text = shingles("x one two three four five y", words(5));
  REQUIRE(long_text.size() == 3);
  CHECK(long_text[1] == shingles("One two\tthree (four) five", words(5))[0]);
  CHECK(shingles("one two", words(2)) != shingles("two one", words(2)));
  CHECK(shingles("ab c", words(2)) != shingles("a bc", words(2)));
  CHECK(shingles("a_b", words(1)) != shingles("a b", words(1)));
  // Fewer words than a shingle has: one of all; none: none.
  CHECK(shingles("a b", words(5)).size() == 1);
  CHECK(shingles("a b", words(5)) == shingles(" a. B ", words(5)));
  CHECK(shingles(" \n.,;", words(5)).empty());
  // A window forgets what left it, whatever its size.
  for (const std::uint32_t size : {1u, 3u, 64u, 1024u}) {
    std::string text, tail;
    for (std::uint32_t i = 0; i < 2 * size + 5; ++i) {
      text += "w" + std::to_string(i * i % 97) + " ";
      if (i >= size + 5) tail += "w" + std::to_string(i * i % 97) + " ";
    }
    CHECK(shingles(text, words(size)).size() == size + 6);
    CHECK(shingles(text, words(size)).back() == shingles(tail, words(size)).front());
  }
}

TEST_CASE("character shingles are runs of code points, white space counts once") {
  CHECK(shingles("abcd", characters(3)).size() == 2);
  CHECK(shingles("a \n\tB c", characters(3)) == shingles(" A b C", characters(3)));
  CHECK(shingles("\u4e2d\u6587\u5b57", characters(2)).size() == 2);
  CHECK(shingles("\u4e2d\u6587\u5b57", characters(2))[1] ==
        shingles("x\u6587\u5b57", characters(2))[1]);
  CHECK(shingles("\u4e2d\u6587", characters(2)) != shingles("\u6587\u4e2d", characters(2)));
  CHECK(shingles("\xFF\xFE", characters(1)).size() == 2);
  CHECK(shingles("a.b", characters(3)) != shingles("a,b", characters(3)));
  CHECK(shingles("", characters(3)).empty());
}

TEST_CASE("sketches estimate Jaccard similarity without bias, with the error of MinHash") {
  constexpr std::size_t kEntries = 128;
  constexpr int kTrials = 300;
  SplitMix64 random(7);
  Sketcher sketcher(kEntries);
  std::vector<std::uint32_t> a(kEntries), b(kEntries);
  for (const auto& [common, own] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {1, 0}, {1, 1}, {4, 1}, {8, 1}, {30, 10}, {100, 100}, {400, 50}, {3000, 1000}}) {
    CAPTURE(common);
    CAPTURE(own);
    const double jaccard = static_cast<double>(common) / static_cast<double>(common + 2 * own);
    double sum = 0, squares = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const TwoSets sets(random, common, own);
      sketcher.sketch(sets.a, a);
      sketcher.sketch(sets.b, b);
      const double error = estimated_jaccard(a, b) - jaccard;
      sum += error;
      squares += error * error;
    }
    const double variance = jaccard * (1 - jaccard) / kEntries;
    CHECK(std::abs(sum / kTrials) <= 4 * std::sqrt(variance / kTrials));
    CHECK(squares / kTrials <= 1.4 * variance);
  }
}

TEST_CASE("a sketch depends on the set alone, not on order or repetition") {
  SplitMix64 random(3);
  const TwoSets sets(random, 50, 0);
  std::vector<std::uint64_t> twice = sets.a;
  twice.insert(twice.end(), sets.b.begin(), sets.b.end());
  std::vector<std::uint32_t> a(64), b(64);
  Sketcher sketcher(64);
  sketcher.sketch(sets.a, a);
  sketcher.sketch(twice, b);
  CHECK(a == b);
  // Entries differ from each other, so that bands of a small set do not all agree by one element.
  CHECK(std::set<std::uint32_t>(a.begin(), a.end()).size() > 30);
}

TEST_CASE("bands compare pairs at the threshold, and as few others as that allows") {
  for (const double threshold : {0.3, 0.5, 0.7, 0.8, 0.9, 0.99}) {
    for (const std::uint32_t permutations : {64u, 128u, 256u}) {
      const Bands bands = choose_bands(permutations, threshold);
      CHECK(bands.count * bands.rows <= permutations);
      CHECK(candidate_probability(bands, threshold) >= 0.99);
      const Bands longer{permutations / (bands.rows + 1), bands.rows + 1};
      CHECK((longer.count == 0 || candidate_probability(longer, threshold) < 0.99));
    }
  }
  CHECK(choose_bands(128, 0.8).rows == 6);
  CHECK(choose_bands(128, 0.8).count == 21);
  CHECK(choose_bands(16, 0.1).rows == 1);
  CHECK(candidate_probability({21, 6}, 0.5) == doctest::Approx(0.2816).epsilon(0.001));
}

TEST_CASE("an index finds the first document above the threshold, and no other") {
  const NearDuplicateOptions options{.threshold = 0.8, .permutations = 128};
  CHECK(least_estimate(options) == doctest::Approx(0.8 - 2 * std::sqrt(0.16 / 128)));
  SplitMix64 random(11);
  Sketcher sketcher(128);
  std::vector<std::uint32_t> sketches;
  const auto add = [&](std::span<const std::uint64_t> set) {
    sketches.resize(sketches.size() + 128);
    sketcher.sketch(set, std::span(sketches).last(128));
  };
  const TwoSets close(random, 950, 25), far(random, 500, 250);
  add(far.a);    // 0
  add(close.a);  // 1
  add(far.b);    // 2: Jaccard 0.5 with 0
  add(close.b);  // 3: 0.95 with 1
  add(close.a);  // 4: the same as 1
  NearDuplicateIndex index(options, sketches);
  CHECK(!index.find(0));
  for (const std::uint32_t document : {0u, 1u, 2u, 3u}) index.add(document);
  CHECK(index.find(4)->document == 1);
  CHECK(index.find(4)->similarity == 1.0);
  CHECK(index.find(3)->document == 1);
  CHECK(index.find(3)->similarity == doctest::Approx(0.95).epsilon(0.05));
  CHECK(index.find(2)->document == 2);  // itself, as it was added, and not 0
}

}  // namespace llmtrain::data
