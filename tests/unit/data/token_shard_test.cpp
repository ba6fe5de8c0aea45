#include "lib/data/token_shard.hpp"

#include <cstring>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

/// Three documents of 3, 0 and 4 tokens.
ShardHeader write_shard(const std::filesystem::path& path, std::uint64_t vocab_size) {
  const auto last = static_cast<std::int32_t>(vocab_size - 1);
  ShardBuilder builder(vocab_size, 0xF00D, 0xBEEF);
  builder.add({0, 11, 0, 0, 1}, std::vector<std::int32_t>{1, 2, last});
  builder.add({0, 0, 5, 1, 0}, {});
  builder.add({0, 9, 77, 1, 0, 3}, std::vector<std::int32_t>{4, 0, last, 6});
  builder.skip_empty();
  return builder.write(path);
}

void expect_refused(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::remove(path);
  write_file_atomic(path, content);
  const std::string message =
      message_of<DataError>([&] { TokenShard::open(path, ShardCheck::payload); });
  CAPTURE(message);
  CHECK(contains(message, path.string()));
}

}  // namespace

TEST_CASE("a shard gives back its documents and tokens, with ids of two and of four bytes") {
  const TemporaryDirectory directory;
  for (const std::uint64_t vocab_size : {300ull, 65536ull, 65537ull, 1ull << 31}) {
    CAPTURE(vocab_size);
    const std::filesystem::path path = directory.path() / "a.tokens";
    const ShardHeader written = write_shard(path, vocab_size);
    const TokenShard shard = TokenShard::open(path, ShardCheck::payload);
    CHECK(shard.header() == written);
    CHECK(written.token_size == (vocab_size <= 65536 ? 2 : 4));
    CHECK(written.token_count == 7);
    CHECK(written.document_count == 3);
    CHECK(written.source_bytes == 20);
    CHECK(written.empty_documents == 1);
    CHECK(written.tokenizer_fingerprint == 0xF00D);
    CHECK(written.build_key == 0xBEEF);
    std::vector<std::int32_t> tokens(7);
    shard.read_tokens(0, tokens);
    const auto last = static_cast<std::int32_t>(vocab_size - 1);
    CHECK(tokens == std::vector<std::int32_t>{1, 2, last, 4, 0, last, 6});
    CHECK(shard.token_begin(0) == 0);
    CHECK(shard.token_begin(1) == 3);
    CHECK(shard.token_begin(2) == 3);
    CHECK(shard.token_begin(3) == 7);
    CHECK(shard.document(2).source_offset == 77);
    CHECK(shard.document(2).source == 1);
    CHECK(shard.document(0).whole_file == 1);
    CHECK(shard.document(0).prompt_tokens == 0);
    CHECK(shard.document(2).prompt_tokens == 3);
    CHECK(written.prompt_tokens == 3);
  }
}

TEST_CASE("a shard cut at any byte is refused, and so is one that is too long") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.tokens";
  write_shard(path, 300);
  const std::string content = read_file(path);
  for (std::size_t size = 0; size < content.size(); ++size) {
    expect_refused(path, std::string_view(content).substr(0, size));
  }
  expect_refused(path, content + '\0');
}

TEST_CASE("a shard with any byte changed is refused") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.tokens";
  write_shard(path, 300);
  const std::string content = read_file(path);
  for (std::size_t at = 0; at < content.size(); ++at) {
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    expect_refused(path, damaged);
  }
}

TEST_CASE("reads check ids even when the payload was not verified") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.tokens";
  write_shard(path, 300);
  std::string content = read_file(path);
  content[content.size() - 1] = '\x7F';  // the last id becomes 0x7F06
  write_file_atomic(path, content);
  const TokenShard shard = TokenShard::open(path);
  std::vector<std::int32_t> tokens(6);
  shard.read_tokens(0, tokens);
  tokens.resize(7);
  CHECK(contains(message_of<DataError>([&] { shard.read_tokens(0, tokens); }),
                 "outside the vocabulary of 300"));
  CHECK_THROWS_AS(shard.read_tokens(1, tokens), InternalError);
}

TEST_CASE("a header whose counts overflow is refused before anything is allocated") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.tokens";
  write_shard(path, 300);
  std::string content = read_file(path);
  for (const std::uint64_t count : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    for (const std::size_t offset : {24u, 32u}) {
      std::string damaged = content;
      std::memcpy(damaged.data() + offset, &count, sizeof count);
      const std::uint64_t hash = hash64(std::string_view(damaged).substr(0, 96));
      std::memcpy(damaged.data() + 96, &hash, sizeof hash);
      expect_refused(path, damaged);
    }
  }
}

TEST_CASE("adding a token outside the vocabulary is an internal error") {
  ShardBuilder builder(10, 0, 0);
  CHECK_THROWS_AS(builder.add({}, std::vector<std::int32_t>{10}), InternalError);
  CHECK_THROWS_AS(builder.add({}, std::vector<std::int32_t>{-1}), InternalError);
  DocumentEntry entry;
  entry.prompt_tokens = 2;
  CHECK_THROWS_AS(builder.add(entry, std::vector<std::int32_t>{1}), InternalError);
}

TEST_CASE("an empty shard is a shard") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "a.tokens";
  ShardBuilder(300, 0, 0).write(path);
  const TokenShard shard = TokenShard::open(path, ShardCheck::payload);
  CHECK(shard.header().document_count == 0);
  CHECK(shard.token_begin(0) == 0);
}

}  // namespace llmtrain::data
