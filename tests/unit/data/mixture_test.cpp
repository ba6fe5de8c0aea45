#include "lib/data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/data/mixed_stream.hpp"
#include "lib/data/prepare.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

const std::vector<std::vector<double>> kWeights{{1},
                                                {1, 1},
                                                {0.7, 0.3},
                                                {0.7, 0.2, 0.1},
                                                {5, 0, 3},
                                                {1, 1, 1, 1},
                                                {1e-3, 0.5, 40, 7, 2},
                                                {0.1, 0.2, 0.3, 0.15, 0.05, 0.08, 0.12, 0, 3}};

}  // namespace

TEST_CASE("any window of the stream has each source's share") {
  for (const std::vector<double>& weights : kWeights) {
    const Proportions proportions(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double bound = 1 + std::ceil(std::log2(static_cast<double>(weights.size())));
    // Near the beginning, and far from it.
    for (const std::uint64_t start : {std::uint64_t{0}, std::uint64_t{1} << 50}) {
      std::vector<std::vector<std::uint64_t>> counts;  // [n][part]
      constexpr std::uint64_t kLength = 400;
      for (std::uint64_t n = 0; n <= kLength; ++n) {
        std::vector<std::uint64_t>& row = counts.emplace_back();
        for (std::size_t s = 0; s < weights.size(); ++s) {
          row.push_back(proportions.count(s, start + n));
        }
        CHECK(std::accumulate(row.begin(), row.end(), std::uint64_t{0}) == start + n);
      }
      for (std::uint64_t a = 0; a <= kLength; a += 7) {
        for (std::uint64_t b = a; b <= kLength; ++b) {
          for (std::size_t s = 0; s < weights.size(); ++s) {
            const double share = static_cast<double>(b - a) * weights[s] / sum;
            const auto got = static_cast<double>(counts[b][s] - counts[a][s]);
            REQUIRE(std::abs(got - share) <= bound);
            if (weights[s] == 0) REQUIRE(got == 0);
          }
        }
      }
      for (std::uint64_t i = 0; i < kLength; ++i) {
        const std::size_t part = proportions.part_at(start + i);
        REQUIRE(counts[i + 1][part] == counts[i][part] + 1);
      }
    }
  }
}

TEST_CASE("seven of ten is seven of every ten") {
  const Proportions proportions(std::vector<double>{0.7, 0.2, 0.1});
  for (std::uint64_t ten = 0; ten < 1000; ++ten) {
    CHECK(proportions.count(0, 10 * ten) == 7 * ten);
    CHECK(proportions.count(1, 10 * ten) == 2 * ten);
  }
}

TEST_CASE("however light, a source with a weight has its turn") {
  // Lighter than the smallest unit that proportions are counted in.
  const Proportions proportions(std::vector<double>{1, 1e-20, 0});
  const std::uint64_t many = std::uint64_t{1} << 50;
  CHECK(proportions.count(1, many) > 0);
  CHECK(proportions.count(1, many) < many / 1000);
  CHECK(proportions.count(2, many) == 0);
}

TEST_CASE("a part of an epoch that is no whole sample is not begun") {
  // 0.55 epochs of 10 samples are 5.5.
  const Mixture mixture({{.samples = 10, .max_epochs = 0.55}, {.samples = 10}},
                        {{.weights = {1, 1}}});
  CHECK(mixture.count(0, 100) == 5);
  CHECK(Mixture({{.samples = 10, .max_epochs = 0.55}}, {{.weights = {1}}}).length() == 5);
}

TEST_CASE("each source gives its own stream in order, whatever the stages") {
  const Mixture mixture({{.samples = 10}, {.samples = 20}, {.samples = 5}},
                        {{.first_sample = 0, .weights = {1, 1, 0}},
                         {.first_sample = 100, .weights = {0, 1, 3}},
                         {.first_sample = 101, .weights = {1, 1, 1}}});
  CHECK(mixture.length() == Mixture::kEndless);
  CHECK(mixture.ends().empty());
  std::vector<std::uint64_t> next(3, 0);
  for (std::uint64_t i = 0; i < 400; ++i) {
    for (std::size_t s = 0; s < 3; ++s) REQUIRE(mixture.count(s, i) == next[s]);
    const Mixture::Place place = mixture.place(i);
    REQUIRE(place.index == next[place.source]++);
    if (i == 99) CHECK(next == std::vector<std::uint64_t>{50, 50, 0});
  }
  CHECK(next[0] + next[1] + next[2] == 400);
  for (const auto& [got, expected] :
       {std::pair(next[0], 149.67), {next[1], 149.92}, {next[2], 100.42}}) {
    CHECK(std::abs(static_cast<double>(got) - expected) < 2);
  }
}

TEST_CASE("a source ends after its epochs and the others share its part") {
  const Mixture mixture({{.samples = 10, .max_epochs = 1.5}, {.samples = 100}, {.samples = 100}},
                        {{.weights = {2, 1, 1}}});
  REQUIRE(mixture.ends().size() == 1);
  CHECK(mixture.ends()[0].source == 0);
  const std::uint64_t end = mixture.ends()[0].sample;
  CHECK(mixture.count(0, end) == 15);
  CHECK(mixture.count(0, end - 1) == 14);
  CHECK(end >= 28);
  CHECK(end <= 32);
  CHECK(mixture.count(0, end + 1000) == 15);
  CHECK(mixture.count(1, end + 1000) - mixture.count(1, end) == 500);
  std::vector<std::uint64_t> next(3, 0);
  for (std::uint64_t i = 0; i < end + 1000; ++i) {
    const Mixture::Place place = mixture.place(i);
    REQUIRE(place.index == next[place.source]++);
  }
}

TEST_CASE("a stream whose sources all end has a length") {
  const Mixture mixture({{.samples = 10, .max_epochs = 2}, {.samples = 30, .max_epochs = 0.5}},
                        {{.weights = {1, 1}}, {.first_sample = 12, .weights = {1, 5}}});
  CHECK(mixture.length() == 35);
  CHECK(mixture.count(0, 35) == 20);
  CHECK(mixture.count(1, 35) == 15);
  CHECK(mixture.ends().size() == 2);
  CHECK_THROWS_AS(mixture.place(35), InternalError);
  // A source without a weight does not keep the stream going.
  CHECK(
      Mixture({{.samples = 4, .max_epochs = 1}, {.samples = 9}}, {{.weights = {1, 0}}}).length() ==
      4);
}

TEST_CASE("weights and stages that make no mixture are refused") {
  const auto refusal = [](std::vector<MixtureStage> stages) {
    return message_of<RecipeError>([&] {
      Mixture({{.samples = 4}, {.samples = 9}}, std::move(stages));
    });
  };
  CHECK(refusal({{.weights = {1, 1}}}) == "");
  CHECK(contains(refusal({}), "begins with the run"));
  CHECK(contains(refusal({{.first_sample = 1, .weights = {1, 1}}}), "begins with the run"));
  CHECK(contains(refusal({{.weights = {1}}}), "1 weights for 2 sources"));
  CHECK(contains(refusal({{.weights = {1, -1}}}), "a weight of -1"));
  CHECK(contains(refusal({{.weights = {1, 1}},
                          {.first_sample = 9, .weights = {1, 2}},
                          {.first_sample = 9, .weights = {1, 3}}}),
                 "stage 2 begins at sample 9"));
}

TEST_CASE("a mixed stream reads the samples that the mixture names, each source in its own order") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  std::vector<std::shared_ptr<const PackedSamples>> packed;
  std::vector<SampleStream> streams;
  for (const std::string name : {"a", "b"}) {
    SourceOptions source;
    source.path = directory.write(name + ".txt", std::string(name == "a" ? 300 : 500, name[0]));
    auto set = std::make_shared<TokenSet>(open_or_prepare(list_source_files(std::span(&source, 1)),
                                                          *tokenizer, {}, directory.path() / name));
    packed.push_back(
        std::make_shared<PackedSamples>(std::move(set), *tokenizer, PackingOptions{.seq_len = 16}));
    streams.emplace_back(packed.back(), 5, "samples of " + name);
  }
  const MixedStream mixed(streams, Mixture({{.samples = packed[0]->sample_count()},
                                            {.samples = packed[1]->sample_count()}},
                                           {{.weights = {1, 3}}}));
  CHECK(mixed.epoch_size() == packed[0]->sample_count() + packed[1]->sample_count());
  std::vector<std::vector<std::uint64_t>> seen(2);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Mixture::Place place = mixed.mixture().place(i);
    Sample sample = mixed.sample_at(i);
    CHECK(sample.targets == streams[place.source].sample_at(place.index).targets);
    seen[place.source].push_back(sample.index);
    const std::int64_t trained = mixed.read(i, sample.view());
    CHECK(trained == packed[place.source]->document_rows(sample.index));
  }
  CHECK(seen[0].size() == 50);
  for (std::size_t s = 0; s < 2; ++s) {
    // One pass through the source has each sample once.
    std::vector<std::uint64_t> epoch(
        seen[s].begin(), seen[s].begin() + static_cast<std::ptrdiff_t>(packed[s]->sample_count()));
    CHECK(!std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
    for (std::uint64_t i = 0; i < epoch.size(); ++i) CHECK(epoch[i] == i);
  }
  CHECK(MixedStream(streams[0]).sample_at(7).targets == streams[0].sample_at(7).targets);
}

}  // namespace llmtrain::data
