#include "lib/data/best_fit.hpp"

#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/data/inspect.hpp"
#include "lib/data/prepare.hpp"
#include "lib/data/sample_stream.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

constexpr std::int32_t kEnd = 256;

BestFitLayout pack(const std::vector<std::uint64_t>& rows, std::uint32_t seq_len) {
  return pack_best_fit(rows.size(), seq_len, [&](std::uint64_t d) { return rows[d]; });
}

std::vector<std::vector<std::uint64_t>> documents_of(const BestFitLayout& layout) {
  std::vector<std::vector<std::uint64_t>> samples;
  for (std::size_t s = 0; s + 1 < layout.starts.size(); ++s) {
    samples.emplace_back();
    for (std::uint64_t i = layout.starts[s]; i < layout.starts[s + 1]; ++i) {
      samples.back().push_back(layout.chunks[i].document);
    }
  }
  return samples;
}

using Samples = std::vector<std::vector<std::uint64_t>>;

}  // namespace

TEST_CASE("each document goes to the sample with the least room that holds it") {
  // 7 and 6 open samples; 4 fits the one of 6 exactly, 3 the one of 7; 2 and 2 open another.
  CHECK(documents_of(pack({2, 6, 3, 7, 4, 2}, 10)) == Samples{{3, 2}, {1, 4}, {0, 5}});
  // First fit would put 3 beside 5.
  CHECK(documents_of(pack({5, 7, 3, 5}, 10)) == Samples{{1, 2}, {0, 3}});
  CHECK(documents_of(pack({1, 1, 1}, 1)) == Samples{{0}, {1}, {2}});
}

TEST_CASE("no document is cut that fits, longer ones only at whole samples, nothing is lost") {
  SplitMix64 random(4);
  for (const std::uint32_t seq_len : {1u, 2u, 63u, 64u, 65u, 200u}) {
    CAPTURE(seq_len);
    std::vector<std::uint64_t> rows;
    for (int i = 0; i < 500; ++i) rows.push_back(1 + random() % (i % 10 == 0 ? 500 : 90));
    const BestFitLayout layout = pack(rows, seq_len);
    std::map<std::uint64_t, std::vector<std::uint32_t>> chunks;  // document -> rows by chunk
    for (std::size_t s = 0; s + 1 < layout.starts.size(); ++s) {
      std::uint64_t filled = 0;
      for (std::uint64_t i = layout.starts[s]; i < layout.starts[s + 1]; ++i) {
        const PackedChunk& chunk = layout.chunks[i];
        filled += chunk.rows;
        auto& of_document = chunks[chunk.document];
        of_document.resize(std::max<std::size_t>(of_document.size(), chunk.chunk + 1));
        CHECK(of_document[chunk.chunk] == 0);
        of_document[chunk.chunk] = chunk.rows;
      }
      REQUIRE(filled > 0);
      REQUIRE(filled <= seq_len);
    }
    for (std::uint64_t d = 0; d < rows.size(); ++d) {
      REQUIRE(chunks[d].size() == (rows[d] + seq_len - 1) / seq_len);
      REQUIRE(std::accumulate(chunks[d].begin(), chunks[d].end(), std::uint64_t{0}) == rows[d]);
      for (std::size_t i = 0; i + 1 < chunks[d].size(); ++i) REQUIRE(chunks[d][i] == seq_len);
    }
    // Best-fit decreasing needs at most 11/9 of the best packing's samples, and four more.
    const std::uint64_t total = std::accumulate(rows.begin(), rows.end(), std::uint64_t{0});
    if (seq_len == 200) {
      CHECK(layout.starts.size() - 1 <= (total + seq_len - 1) / seq_len * 11 / 9 + 4);
    }
  }
}

TEST_CASE("samples of the best fit hold whole documents and predict each row once") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  SplitMix64 random(9);
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    texts.emplace_back(1 + random() % (i == 7 ? 100 : 25), static_cast<char>('A' + i % 26));
    directory.write(fmt::format("src/{:04}.txt", i), texts.back());
  }
  SourceOptions source;
  source.path = directory.path() / "src";
  const auto set = std::make_shared<const TokenSet>(open_or_prepare(
      list_source_files(std::span(&source, 1)), *tokenizer, {}, directory.path() / "out"));
  const PackedSamples wrapped(set, *tokenizer, {.seq_len = 32});
  const PackedSamples best(set, *tokenizer, {.seq_len = 32, .strategy = PackingStrategy::best_fit});
  CHECK(best.row_count() == wrapped.row_count());
  CHECK(best.sample_count() >= wrapped.sample_count());
  std::uint64_t rows = 0;
  std::multiset<std::string> found;
  for (std::uint64_t s = 0; s < best.sample_count(); ++s) {
    const Sample sample = best.sample(s);
    CHECK(best.sample(s).tokens == sample.tokens);
    const auto filled = static_cast<std::size_t>(best.document_rows(s));
    rows += filled;
    std::string text;
    for (std::size_t i = 0; i < 32; ++i) {
      if (i >= filled) {
        CHECK(sample.tokens[i] == kEnd);
        CHECK(sample.targets[i] == kNoTarget);
        CHECK(sample.doc_begin[i] == static_cast<std::int32_t>(filled));
        continue;
      }
      CHECK(sample.positions[i] == static_cast<std::int32_t>(i) - sample.doc_begin[i]);
      if (sample.targets[i] != kEnd) text += static_cast<char>(sample.targets[i]);
      if (sample.targets[i] == kEnd) found.insert(std::exchange(text, ""));
    }
  }
  CHECK(rows == best.row_count());
  for (const std::string& text : texts) {
    if (text.size() < 32) CHECK(found.contains(text));
  }
  CHECK(best.padding_share() ==
        1 - static_cast<double>(rows) / static_cast<double>(32 * best.sample_count()));
  const std::string shown = inspect_sample(best, best.sample_count() - 1, *tokenizer);
  CHECK(contains(shown,
                 fmt::format("sample {} of {}", best.sample_count() - 1, best.sample_count())));
  CHECK(contains(shown, ".txt ("));
}

}  // namespace llmtrain::data
