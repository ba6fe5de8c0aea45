// What de-duplication finds of copies that were planted, and what it finds that is none.
#include <cmath>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/data/cleaning.hpp"
#include "lib/data/similarity_sketch.hpp"
#include "tests/unit/data/planted_corpus.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

const auto& headers() {
  static const auto all = standard_headers();
  return all;
}

const auto& copies() {
  static const auto all = plant_copies(headers());
  return all;
}

struct Hits {
  int hits = 0, of = 0;
  void count(bool hit) {
    hits += hit ? 1 : 0;
    ++of;
  }
  double value() const { return static_cast<double>(hits) / of; }
};

}  // namespace

TEST_CASE("de-duplication finds every exact and at least 95 % of the near copies in the headers") {
  const TemporaryDirectory directory;
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : headers()) texts["a/" + name] = text;
  for (const PlantedCopy& copy : copies()) texts["b/" + copy.name] = copy.text;
  for (const auto& [name, text] : texts) directory.write("src/" + name, text);
  const SourceOptions source{.path = directory.path() / "src"};
  const auto files = list_source_files(std::span(&source, 1));
  // Nothing is held out: no hash of a name has this remainder.
  const CleaningRequest request{.options = {.exact = true, .near = NearDuplicateOptions{}},
                                .held_out = {~std::uint64_t{0}, 0}};
  open_or_clean(files, request, directory.path() / "out");

  std::map<std::string, DroppedDocument> dropped;
  const std::string list = read_file(directory.path() / "out" / kDroppedName);
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = list.find('\n', at);
    auto document = DroppedDocument::from_json_line(list.substr(at, end - at), "list");
    dropped[document.document] = document;
    at = end + 1;
  }
  // A pair is found when not both of it stay: a header that resembles another one goes itself.
  Hits exact, near, at_border, copies_gone;
  for (const PlantedCopy& copy : copies()) {
    const bool gone = dropped.contains("b/" + copy.name);
    const bool found = gone || dropped.contains("a/" + copy.original);
    if (copy.exact) exact.count(gone);
    if (!copy.exact && copy.jaccard >= 0.8) copies_gone.count(gone);
    if (!copy.exact && copy.jaccard >= 0.8) near.count(found);
    if (!copy.exact && copy.jaccard >= 0.8 && copy.jaccard < 0.85) at_border.count(found);
  }
  // Every dropped document against the one that stays instead.
  Hits wrong, unlike;
  for (const auto& [name, document] : dropped) {
    CHECK(!dropped.contains(document.partner));
    if (document.reason == "exact_duplicate") {
      CHECK(texts.at(name) == texts.at(document.partner));
      continue;
    }
    const double jaccard =
        true_jaccard(word_5grams(texts.at(name)), word_5grams(texts.at(document.partner)));
    wrong.count(jaccard < 0.5);
    unlike.count(jaccard < 0.7);
  }
  MESSAGE(
      fmt::format("exact {} of {}; near {} of {} (the copy itself {}), of which below 0.85 {} of "
                  "{}; false {} of {} ({} below 0.7)",
                  exact.hits, exact.of, near.hits, near.of, copies_gone.hits, at_border.hits,
                  at_border.of, wrong.hits, wrong.of, unlike.hits));
  CHECK(exact.of > 100);
  CHECK(near.of > 200);
  CHECK(at_border.of > 20);
  CHECK(exact.hits == exact.of);
  CHECK(near.value() >= 0.95);
  CHECK(wrong.value() < 0.01);
}

TEST_CASE("of all pairs of headers and copies, less than 1 % that are taken as near are not") {
  std::vector<const std::string*> texts;
  for (const auto& header : headers()) texts.push_back(&header.second);
  for (const PlantedCopy& copy : copies()) texts.push_back(&copy.text);
  const NearDuplicateOptions near;
  const CleaningOptions options{.near = near};
  const std::size_t k = near.permutations;
  std::vector<std::uint32_t> sketches(texts.size() * k);
  const auto sketch = [&](std::size_t i) { return std::span(sketches).subspan(i * k, k); };
  std::vector<std::set<std::string>> grams;
  Hash128 unused;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    sign_text(*texts[i], options, unused, sketch(i));
    grams.push_back(word_5grams(*texts[i]));
  }
  Hits false_pairs, error;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (grams[i].empty() || grams[j].empty()) continue;
      const double estimate = estimated_jaccard(sketch(i), sketch(j));
      const bool taken = estimate >= least_estimate(near);
      // Estimates that matter are compared with the truth: those taken, and a sample of the others.
      if (!taken && (i * 7919 + j) % 200 != 0) continue;
      const double jaccard = true_jaccard(grams[i], grams[j]);
      error.count(std::abs(estimate - jaccard) > 0.2);
      if (taken) false_pairs.count(jaccard < 0.5);
      if (!taken) CHECK(jaccard < 0.9);
    }
  }
  MESSAGE(fmt::format(
      "pairs taken {}, of them below 0.5: {}; brute-forced {}, off by more than 0.2: {}",
      false_pairs.of, false_pairs.hits, error.of, error.hits));
  CHECK(false_pairs.of > 300);
  CHECK(false_pairs.value() < 0.01);
  CHECK(error.value() < 0.001);
}

}  // namespace llmtrain::data
