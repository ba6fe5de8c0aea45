#include "lib/data/sample_stream.hpp"

#include <map>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/data/eval_windows.hpp"
#include "lib/data/inspect.hpp"
#include "lib/data/prepare.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

constexpr std::int32_t kEnd = 256;

/// A token set of the given documents, made with the byte tokenizer; several shards.
class Fixture {
 public:
  explicit Fixture(const std::vector<std::string>& documents) {
    for (std::size_t i = 0; i < documents.size(); ++i) {
      directory_.write(fmt::format("src/{:04}.txt", i), documents[i]);
    }
    SourceOptions source;
    source.path = directory_.path() / "src";
    PrepareOptions options;
    options.shard_source_bytes = 700;
    prepare(list_source_files(std::span(&source, 1)), *tokenizer, options,
            directory_.path() / "out");
    set = std::make_shared<const TokenSet>(TokenSet::open(directory_.path() / "out"));
  }
  std::shared_ptr<const PackedSamples> packed(PackingOptions options) const {
    return std::make_shared<const PackedSamples>(set, *tokenizer, options);
  }

  std::shared_ptr<const Tokenizer> tokenizer = make_byte_tokenizer();
  std::shared_ptr<const TokenSet> set;

 private:
  TemporaryDirectory directory_;
};

std::vector<std::string> random_documents(std::uint64_t seed, std::size_t count) {
  SplitMix64 random(seed);
  std::vector<std::string> documents;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text;
    for (std::uint64_t n = 1 + random() % 120; n > 0; --n) {
      text += static_cast<char>('a' + random() % 26);
    }
    documents.push_back(text);
  }
  return documents;
}

using Ids = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("rows of a sample read the start token, then each token, and predict the next") {
  const Fixture fixture({"ab", "c", "defgh"});
  const auto packed = fixture.packed({.seq_len = 6});
  CHECK(packed->row_count() == 3 + 2 + 6);
  REQUIRE(packed->sample_count() == 2);
  const Sample first = packed->sample(0);
  CHECK(first.tokens == Ids{kEnd, 'a', 'b', kEnd, 'c', kEnd});
  CHECK(first.targets == Ids{'a', 'b', kEnd, 'c', kEnd, 'd'});
  CHECK(first.doc_begin == Ids{0, 0, 0, 3, 3, 5});
  CHECK(first.positions == Ids{0, 1, 2, 0, 1, 0});
  const Sample second = packed->sample(1);
  CHECK(second.tokens == Ids{'d', 'e', 'f', 'g', 'h', kEnd});
  CHECK(second.targets == Ids{'e', 'f', 'g', 'h', kEnd, kNoTarget});
  CHECK(second.doc_begin == Ids{0, 0, 0, 0, 0, 5});
  CHECK(second.positions == Ids{0, 1, 2, 3, 4, 0});
  CHECK(packed->document_rows(0) == 6);
  CHECK(packed->document_rows(1) == 5);
}

TEST_CASE("attention across documents and running positions are options") {
  const Fixture fixture({"ab", "c", "defgh"});
  const auto across = fixture.packed({.seq_len = 6, .cross_document_attention = true});
  CHECK(across->sample(0).doc_begin == Ids{0, 0, 0, 0, 0, 0});
  CHECK(across->sample(0).positions == Ids{0, 1, 2, 0, 1, 0});
  const auto running = fixture.packed({.seq_len = 6, .reset_positions = false});
  CHECK(running->sample(0).doc_begin == Ids{0, 0, 0, 3, 3, 5});
  CHECK(running->sample(1).positions == Ids{0, 1, 2, 3, 4, 5});
}

TEST_CASE("a start token of its own is read but never predicted") {
  const Fixture fixture({"ab", "c"});
  const PackedSamples packed(fixture.set, 7, kEnd, {.seq_len = 5});
  const Sample sample = packed.sample(0);
  CHECK(sample.tokens == Ids{7, 'a', 'b', 7, 'c'});
  CHECK(sample.targets == Ids{'a', 'b', kEnd, 'c', kEnd});
}

TEST_CASE("an epoch predicts every token of every document once, from its own document") {
  const std::vector<std::string> documents = random_documents(11, 60);
  const Fixture fixture(documents);
  CHECK(fixture.set->content_hashes().size() > 3);
  std::uint64_t bytes = 0;
  for (const std::string& text : documents) bytes += text.size();
  for (const std::int64_t seq_len : {1, 2, 7, 64, 257, 100000}) {
    CAPTURE(seq_len);
    const auto packed = fixture.packed({.seq_len = seq_len});
    const SampleStream stream(packed, 42);
    CHECK(packed->source_bytes() == bytes);
    std::map<std::uint64_t, std::pair<std::int32_t, std::int32_t>> rows;  // row -> (read, predict)
    std::int64_t trained = 0;
    for (std::uint64_t g = 0; g < stream.epoch_size(); ++g) {
      Sample sample = stream.sample_at(stream.epoch_size() + g);  // the second epoch
      trained += stream.read(stream.epoch_size() + g, sample.view());
      for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
        REQUIRE(sample.doc_begin[i] <= static_cast<std::int32_t>(i));
        if (sample.targets[i] == kNoTarget) continue;
        const std::uint64_t row = sample.index * static_cast<std::uint64_t>(seq_len) + i;
        REQUIRE(rows.emplace(row, std::pair(sample.tokens[i], sample.targets[i])).second);
      }
    }
    CHECK(trained == static_cast<std::int64_t>(bytes + documents.size()));
    REQUIRE(rows.size() == bytes + documents.size());
    std::uint64_t row = 0;
    for (const std::string& text : documents) {
      for (std::size_t t = 0; t <= text.size(); ++t, ++row) {
        REQUIRE(rows.at(row).first == (t == 0 ? kEnd : text[t - 1]));
        REQUIRE(rows.at(row).second == (t == text.size() ? kEnd : text[t]));
      }
    }
  }
}

TEST_CASE("the stream is a pure function of seed and index, epochs differ") {
  const Fixture fixture(random_documents(12, 60));
  const auto packed = fixture.packed({.seq_len = 16});
  const SampleStream stream(packed, 42);
  const SampleStream again(packed, 42);
  const SampleStream other(packed, 43);
  const std::uint64_t n = stream.epoch_size();
  std::set<std::uint64_t> seen;
  std::uint64_t same_epoch = 0;
  std::uint64_t same_seed = 0;
  for (std::uint64_t g = n; g-- > 0;) {
    const std::uint64_t index = stream.sample_index(g);
    CHECK(index == again.sample_index(g));
    seen.insert(index);
    same_epoch += index == stream.sample_index(n + g) ? 1 : 0;
    same_seed += index == other.sample_index(g) ? 1 : 0;
  }
  CHECK(seen.size() == n);
  CHECK(same_epoch < 12);
  CHECK(same_seed < 12);
  CHECK(stream.sample_at(5).tokens == packed->sample(stream.sample_index(5)).tokens);
}

TEST_CASE("sources of one size and seed have orders of their own") {
  const Fixture fixture(random_documents(12, 60));
  const auto packed = fixture.packed({.seq_len = 16});
  const SampleStream a(packed, 42, "samples of a");
  const SampleStream b(packed, 42, "samples of b");
  std::uint64_t same = 0;
  for (std::uint64_t g = 0; g < a.epoch_size(); ++g) {
    same += a.sample_index(g) == b.sample_index(g) ? 1 : 0;
  }
  CHECK(a.epoch_size() > 100);
  CHECK(same < 12);
}

TEST_CASE("packing refuses what it cannot do") {
  const Fixture fixture({"ab"});
  CHECK_THROWS_AS(fixture.packed({.seq_len = 0}), RecipeError);
  CHECK_THROWS_AS(PackedSamples(fixture.set, 257, kEnd, {.seq_len = 4}), DataError);
  const auto packed = fixture.packed({.seq_len = 4});
  CHECK_THROWS_AS(packed->sample(1), InternalError);
  const auto other =
      make_tokenizer({.type = "bpe", .path = test_file("unit/data/golden/gpt2.json")});
  CHECK(contains(message_of<DataError>([&] { PackedSamples(fixture.set, *other, {.seq_len = 4}); }),
                 "another tokenizer"));
}

TEST_CASE("inspection shows documents, masks, sources and tokens") {
  const Fixture fixture({"a\n", "cd"});
  const auto packed = fixture.packed({.seq_len = 4});
  CHECK(inspect_sample(*packed, 0, *fixture.tokenizer) ==
        "sample 0 of 2: 4 rows, 4 predict a token\n"
        "rows 0..2: document 0 0000.txt (2 tokens, 2 bytes)\n"
        "  a|\\n|<|endoftext|>|\n"
        "rows 3..3: document 1 0001.txt (2 tokens, 2 bytes)\n"
        "  c|\n");
  CHECK(inspect_sample(*packed, 1, *fixture.tokenizer, {.rows = true}) ==
        "sample 1 of 2: 4 rows, 2 predict a token\n"
        "rows 0..1: document 1 0001.txt (2 tokens, 2 bytes, from its row 1)\n"
        "       0 position 0      sees 0..0  'c' (99) -> 'd' (100)\n"
        "       1 position 1      sees 0..1  'd' (100) -> '<|endoftext|>' (256)\n"
        "rows 2..3: padding\n");
  CHECK(contains(inspect_sample(*packed, 0, *fixture.tokenizer, {.max_rows = 2}), "(2 more rows)"));
  CHECK(visible_text("a\t\\\x01\xC3\xA9\xFF\x7F") == "a\\t\\\\\\x01\xC3\xA9\\xFF\\x7F");
}

TEST_CASE("windows count every row once, with the rows before it in sight") {
  const Fixture fixture(random_documents(5, 40));
  for (const std::int64_t length : {1, 7, 64, 100000}) {
    const auto packed = fixture.packed({.seq_len = length});
    for (const std::int64_t stride : {std::int64_t{1}, (length + 1) / 2, length}) {
      CAPTURE(length);
      CAPTURE(stride);
      const EvalWindows windows(packed, stride);
      Sample window = packed->sample(0);
      std::uint64_t row = 0;  // the next to be counted
      for (std::uint64_t w = 0; w < windows.count(); ++w) {
        const std::int64_t counted = windows.read(w, window.view());
        std::int64_t found = 0;
        for (std::size_t i = 0; i < window.targets.size(); ++i) {
          if (window.targets[i] == kNoTarget) continue;
          const Sample alone = packed->sample(row / static_cast<std::uint64_t>(length));
          REQUIRE(w * static_cast<std::uint64_t>(stride) + i == row);
          CHECK(window.targets[i] == alone.targets[row % static_cast<std::uint64_t>(length)]);
          CHECK(window.tokens[i] == alone.tokens[row % static_cast<std::uint64_t>(length)]);
          const auto seen = static_cast<std::int64_t>(i) - window.doc_begin[i];
          CHECK((window.doc_begin[i] > 0 || w == 0 || seen >= length - stride));
          ++row;
          ++found;
        }
        CHECK(found == counted);
      }
      CHECK(row == packed->row_count());
    }
  }
}

TEST_CASE("windows as far apart as samples are long are the samples") {
  const Fixture fixture(random_documents(6, 30));
  const auto packed = fixture.packed({.seq_len = 50});
  const EvalWindows windows(packed, 50);
  REQUIRE(windows.count() == packed->sample_count());
  Sample window = packed->sample(0);
  for (std::uint64_t w = 0; w < windows.count(); ++w) {
    CHECK(windows.read(w, window.view()) == packed->document_rows(w));
    const Sample sample = packed->sample(w);
    CHECK(window.tokens == sample.tokens);
    CHECK(window.targets == sample.targets);
    CHECK(window.doc_begin == sample.doc_begin);
    CHECK(window.positions == sample.positions);
  }
  CHECK_THROWS_AS(EvalWindows(packed, 0), RecipeError);
  CHECK_THROWS_AS(EvalWindows(packed, 51), RecipeError);
}

}  // namespace llmtrain::data
