// Documents with prompts, from the file to the rows that are trained.
#include <cstring>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/base/hash.hpp"
#include "lib/data/eval_windows.hpp"
#include "lib/data/inspect.hpp"
#include "lib/data/prepare.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

constexpr std::int32_t kEnd = 256;
using Ids = std::vector<std::int32_t>;

struct Pair {
  std::string prompt, completion;
};

/// A token set of the pairs.
std::shared_ptr<const TokenSet> set_of(const TemporaryDirectory& directory,
                                       const std::vector<Pair>& pairs, const Tokenizer& tokenizer) {
  std::string lines;
  for (const Pair& pair : pairs) {
    lines +=
        fmt::format("{{\"prompt\":\"{}\",\"completion\":\"{}\"}}\n", pair.prompt, pair.completion);
  }
  SourceOptions source;
  source.path = directory.write("pairs.jsonl", lines);
  source.prompt_key = "prompt";
  source.completion_key = "completion";
  PrepareOptions options;
  options.shard_source_bytes = 400;
  return std::make_shared<const TokenSet>(open_or_prepare(
      list_source_files(std::span(&source, 1)), tokenizer, options, directory.path() / "out"));
}

std::vector<Pair> random_pairs(std::uint64_t seed, std::size_t count) {
  SplitMix64 random(seed);
  const auto word = [&](std::uint64_t length) {
    std::string text;
    for (; length > 0; --length) text += static_cast<char>('a' + random() % 26);
    return text;
  };
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    std::string prompt = word(random() % 40);
    pairs.push_back({std::move(prompt), word(1 + random() % 20)});
  }
  return pairs;
}

}  // namespace

TEST_CASE("rows that predict the prompt are not trained; completion and end are") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  const auto set = set_of(directory, {{"ab", "cd"}, {"", "e"}}, *tokenizer);
  const PackedSamples packed(set, *tokenizer, {.seq_len = 8});
  const Sample sample = packed.sample(0);
  CHECK(sample.tokens == Ids{kEnd, 'a', 'b', 'c', 'd', kEnd, 'e', kEnd});
  CHECK(sample.targets == Ids{-1, -1, 'c', 'd', kEnd, 'e', kEnd, -1});
  CHECK(packed.row_count() == 7);
  CHECK(packed.trained_row_count() == 5);
  CHECK(packed.source_bytes() == 3);
  CHECK(packed.document_rows(0) == 7);
  CHECK(inspect_sample(packed, 0, *tokenizer) ==
        "sample 0 of 1: 8 rows, 5 predict a token\n"
        "rows 0..4: document 0 pairs.jsonl@0 (4 tokens, 2 bytes)\n"
        "  (a)|(b)|c|d|<|endoftext|>|\n"
        "rows 5..6: document 1 pairs.jsonl@34 (1 tokens, 1 bytes)\n"
        "  e|<|endoftext|>|\n"
        "rows 7..7: padding\n");
  CHECK(contains(inspect_sample(packed, 0, *tokenizer, {.rows = true}), "'a' (97) -> nothing"));
}

TEST_CASE(
    "an epoch and the windows train each completion once, however samples cut the documents") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<Pair> pairs = random_pairs(3, 80);
  const auto set = set_of(directory, pairs, *tokenizer);
  REQUIRE(set->content_hashes().size() > 3);
  std::string expected;
  std::uint64_t bytes = 0;
  for (const Pair& pair : pairs) {
    expected += pair.completion + "$";
    bytes += pair.completion.size();
  }
  for (const std::int64_t seq_len : {1, 5, 16, 64, 9000}) {
    CAPTURE(seq_len);
    const auto packed =
        std::make_shared<const PackedSamples>(set, *tokenizer, PackingOptions{.seq_len = seq_len});
    CHECK(packed->source_bytes() == bytes);
    CHECK(packed->trained_row_count() == bytes + pairs.size());
    const auto text_of = [&](const auto& source, std::uint64_t count) {
      std::string text;
      Sample sample = packed->sample(0);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::int64_t trained = source.read(i, sample.view());
        std::int64_t found = 0;
        for (const std::int32_t target : sample.targets) {
          if (target == kNoTarget) continue;
          ++found;
          text += target == kEnd ? '$' : static_cast<char>(target);
        }
        REQUIRE(found == trained);
      }
      return text;
    };
    CHECK(text_of(*packed, packed->sample_count()) == expected);
    const EvalWindows windows(packed, (seq_len + 1) / 2);
    CHECK(text_of(windows, windows.count()) == expected);
  }
}

TEST_CASE("prompt and completion are tokenised each by itself") {
  const auto tokenizer =
      make_tokenizer({.type = "bpe", .path = test_file("unit/data/golden/gpt2.json")});
  // Together these letters have a token across the border.
  const std::string prompt = "value the retu", completion = "rn const";
  const auto alone = [&](std::string_view text) { return tokenizer->encode(text); };
  Ids joined = alone(prompt);
  const std::size_t prompt_tokens = joined.size();
  for (const std::int32_t id : alone(completion)) joined.push_back(id);
  REQUIRE(joined != alone(prompt + completion));
  const TemporaryDirectory directory;
  const auto set = set_of(directory, {{prompt, completion}}, *tokenizer);
  Ids tokens(set->token_count());
  set->read_tokens(0, tokens);
  CHECK(tokens == joined);
  CHECK(set->document(0).prompt_tokens == prompt_tokens);
  CHECK(set->prompt_tokens() == prompt_tokens);
}

TEST_CASE("other keys of the lines are another set") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  SourceOptions source;
  source.path = directory.write("a.jsonl", "{\"text\":\"a\",\"p\":\"b\",\"c\":\"d\"}\n");
  const auto key = [&](std::string prompt, std::string completion) {
    source.prompt_key = std::move(prompt);
    source.completion_key = std::move(completion);
    return token_set_key(list_source_files(std::span(&source, 1)), *tokenizer, {}).options;
  };
  CHECK(key("", "") != key("p", "c"));
  CHECK(key("p", "c") != key("c", "p"));
}

TEST_CASE("a set of the format before prompts is made again") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  set_of(directory, {{"ab", "cd"}}, *tokenizer);
  const auto path = directory.path() / "out" / "shard-00000.tokens";
  const std::string good = read_file(path);
  std::string old = good;
  old[8] = 1;
  write_file_atomic(path, old);
  CHECK(contains(message_of<OtherShardVersion>([&] { TokenSet::open(directory.path() / "out"); }),
                 "token shard of format 1, this program reads 2"));
  const auto set = set_of(directory, {{"ab", "cd"}}, *tokenizer);
  CHECK(set->prompt_tokens() == 2);
  const auto content = [](std::string_view shard) { return shard.substr(kShardHeaderBytes); };
  CHECK(content(read_file(path)) == content(good));
}

TEST_CASE("a prompt that is longer than its document is refused when it is read") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  set_of(directory, {{"ab", "cd"}, {"efgh", "i"}}, *tokenizer);
  const auto path = directory.path() / "out" / "shard-00000.tokens";
  std::string shard = read_file(path);
  shard[kShardHeaderBytes + 32] = 5;  // of the first document: 4 tokens
  const auto put = [&](std::size_t at, std::uint64_t value) {
    std::memcpy(shard.data() + at, &value, sizeof value);
  };
  const Hash128 payload = hash128(std::string_view(shard).substr(kShardHeaderBytes));
  put(64, payload.high);
  put(72, payload.low);
  put(88, 9);
  put(96, hash64(std::string_view(shard).substr(0, 96)));
  write_file_atomic(path, shard);
  const auto read = [&](ShardCheck check) {
    return message_of<DataError>([&] {
      const TokenShard opened = TokenShard::open(path, check);
      CHECK(opened.document(0).prompt_tokens == 5);
    });
  };
  CHECK(read(ShardCheck::header) == "");
  CHECK(contains(read(ShardCheck::payload), "document 0 has a prompt of 5 in 4 tokens"));
}

}  // namespace llmtrain::data
