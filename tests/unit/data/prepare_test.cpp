#include "lib/data/prepare.hpp"

#include <map>
#include <omp.h>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

/// A corpus of text files, a JSONL file and an empty file.
class Corpus {
 public:
  Corpus() {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      directory_.write("src/d" + std::to_string(seed) + ".txt", generated_document(seed));
    }
    directory_.write("src/lines.jsonl",
                     "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}\n");
    directory_.write("src/empty.txt", "");
    source_.path = directory_.path() / "src";
  }
  std::vector<SourceFile> files() const { return list_source_files(std::span(&source_, 1)); }
  fs::path out() const { return directory_.path() / "out"; }
  const TemporaryDirectory& directory() const { return directory_; }
  SourceOptions& source() { return source_; }

 private:
  TemporaryDirectory directory_;
  SourceOptions source_;
};

PrepareOptions small_shards(Part part = Part::all) {
  PrepareOptions options;
  options.part = part;
  options.held_out = {5, 1};
  options.shard_source_bytes = 20000;
  return options;
}

std::map<std::string, std::string> texts_of(const TokenSet& set, const Tokenizer& tokenizer) {
  std::map<std::string, std::string> texts;
  for (std::uint64_t d = 0; d < set.document_count(); ++d) {
    const TokenSet::Document document = set.document(d);
    std::vector<std::int32_t> tokens(document.token_count);
    set.read_tokens(document.token_begin, tokens);
    const std::string text = tokenizer.decode(tokens);
    CHECK(text.size() == document.source_bytes);
    texts[set.document_name(d)] = text;
  }
  return texts;
}

std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::directory_iterator(directory)) {
    contents[entry.path().filename().string()] = read_file(entry.path());
  }
  return contents;
}

}  // namespace

TEST_CASE("a prepared set holds every document's text, in several shards") {
  const Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  prepare(corpus.files(), *tokenizer, small_shards(), corpus.out());
  const TokenSet set = TokenSet::open(corpus.out(), ShardCheck::payload);
  CHECK(read_token_index(corpus.out()).shards.size() > 5);
  CHECK(set.document_count() == 42);
  CHECK(read_token_index(corpus.out()).empty_documents == 2);
  const auto texts = texts_of(set, *tokenizer);
  REQUIRE(texts.size() == 42);
  CHECK(texts.at("d7.txt") == generated_document(7));
  CHECK(texts.at("lines.jsonl@0") == "one");
  CHECK(texts.at("lines.jsonl@27") == "two");
  std::uint64_t bytes = 0;
  for (const auto& [name, text] : texts) bytes += text.size();
  CHECK(set.source_bytes() == bytes);
  std::vector<std::int32_t> all(set.token_count());
  set.read_tokens(0, all);
  CHECK(tokenizer->decode(all).size() == bytes);
}

TEST_CASE("training and held-out parts divide the documents") {
  const Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  prepare(corpus.files(), *tokenizer, small_shards(Part::training), corpus.out() / "t");
  prepare(corpus.files(), *tokenizer, small_shards(Part::held_out), corpus.out() / "h");
  auto training = texts_of(TokenSet::open(corpus.out() / "t"), *tokenizer);
  const auto held_out = texts_of(TokenSet::open(corpus.out() / "h"), *tokenizer);
  CHECK(held_out.size() > 2);
  for (const auto& [name, text] : held_out) {
    CHECK(is_held_out(name, {5, 1}));
    CHECK(training.emplace(name, text).second);
  }
  CHECK(training.size() == 42);
}

TEST_CASE("files are the same for any number of threads") {
  const Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  prepare(corpus.files(), *tokenizer, small_shards(), corpus.out() / "1");
  omp_set_num_threads(4);
  prepare(corpus.files(), *tokenizer, small_shards(), corpus.out() / "4");
  omp_set_num_threads(threads);
  CHECK(files_in(corpus.out() / "1") == files_in(corpus.out() / "4"));
}

TEST_CASE("an interrupted preparation keeps the finished shards and ends the same") {
  const Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  prepare(corpus.files(), *tokenizer, small_shards(), corpus.out() / "whole");
  const auto expected = files_in(corpus.out() / "whole");
  struct Interrupted {};
  PrepareOptions options = small_shards();
  options.progress = [](const PrepareProgress& progress) {
    if (progress.shards_done == 3) throw Interrupted();
  };
  const fs::path out = corpus.out() / "resumed";
  CHECK_THROWS_AS(prepare(corpus.files(), *tokenizer, options, out), Interrupted);
  CHECK(!fs::exists(out / kTokenIndexName));
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(out / "shard-00000.tokens", old);
  fs::last_write_time(out / "shard-00002.tokens", old);
  write_file_atomic(out / "shard-00001.tokens", read_file(out / "shard-00001.tokens") + "x");
  write_file_atomic(out / "shard-00099.tokens", "left over");
  PrepareProgress last;
  options.progress = [&](const PrepareProgress& progress) { last = progress; };
  prepare(corpus.files(), *tokenizer, options, out);
  CHECK(files_in(out) == expected);
  CHECK(fs::last_write_time(out / "shard-00000.tokens") == old);
  CHECK(fs::last_write_time(out / "shard-00002.tokens") == old);
  CHECK(last.shards_done == last.shards_total);
  CHECK(last.bytes_done == last.bytes_total);
  CHECK(last.tokens == TokenSet::open(out).token_count());
}

TEST_CASE("a cached set is reused until files, tokenizer or options change") {
  Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const fs::path index = corpus.out() / kTokenIndexName;
  const auto rebuilt = [&](const Tokenizer& with, const PrepareOptions& options) {
    if (fs::exists(index)) fs::last_write_time(index, old);
    open_or_prepare(corpus.files(), with, options, corpus.out());
    return fs::last_write_time(index) != old;
  };
  CHECK(rebuilt(*tokenizer, small_shards()));
  CHECK(!rebuilt(*tokenizer, small_shards()));
  corpus.directory().write("src/d3.txt", "new text");
  CHECK(rebuilt(*tokenizer, small_shards()));
  CHECK(!rebuilt(*tokenizer, small_shards()));
  corpus.directory().write("src/new.txt", "more text");
  CHECK(rebuilt(*tokenizer, small_shards()));
  PrepareOptions options = small_shards(Part::training);
  CHECK(rebuilt(*tokenizer, options));
  options.held_out.remainder = 2;
  CHECK(rebuilt(*tokenizer, options));
  CHECK(!rebuilt(*tokenizer, options));
  corpus.source().max_document_bytes = 2000;
  CHECK(rebuilt(*tokenizer, options));
  fs::remove(corpus.out() / "shard-00001.tokens");
  CHECK(rebuilt(*tokenizer, options));
  write_file_atomic(index, "{}");
  CHECK(rebuilt(*tokenizer, options));
}

TEST_CASE("a corpus without text is refused with a remedy") {
  const TemporaryDirectory directory;
  directory.write("src/a.txt", "");
  SourceOptions source;
  source.path = directory.path() / "src";
  const auto tokenizer = make_byte_tokenizer();
  const auto refusal = [&](const PrepareOptions& options) {
    return message_of<DataError>([&] {
      prepare(list_source_files(std::span(&source, 1)), *tokenizer, options,
              directory.path() / "out");
    });
  };
  CHECK(contains(refusal(small_shards()), "no document with text"));
  directory.write("src/a.txt", "text");
  PrepareOptions options = small_shards(Part::held_out);
  options.held_out.modulus = 1'000'000'007;
  CHECK(contains(refusal(options), "max_document_bytes"));
  CHECK(contains(refusal(options), "it ends with an evaluation, without eval.interval too"));
  CHECK(!fs::exists(directory.path() / "out" / kTokenIndexName));
}

TEST_CASE("a bad line that is held out is named, not the training part that it leaves empty") {
  const TemporaryDirectory directory;
  const auto tokenizer = make_byte_tokenizer();
  PrepareOptions options = small_shards(Part::training);
  for (std::uint64_t remainder : {0u, 1u}) {
    options.held_out = {2, remainder};
    SourceOptions source;
    const auto refusal = [&](std::string_view line) {
      source.path = directory.write("a.jsonl", line);
      return message_of<DataError>([&] {
        prepare(list_source_files(std::span(&source, 1)), *tokenizer, options,
                directory.path() / "out");
      });
    };
    CHECK(contains(refusal("{\"text\":5}\n"), "a.jsonl:1: 'text' is number, not a string"));
    const bool held_out = is_held_out(document_name("a.jsonl", 0, false), options.held_out);
    CHECK(contains(refusal("{\"text\":\"x\"}\n"), "data.eval_modulus") == held_out);
  }
}

TEST_CASE("an index that lies about its shards is refused") {
  const Corpus corpus;
  const auto tokenizer = make_byte_tokenizer();
  prepare(corpus.files(), *tokenizer, small_shards(), corpus.out());
  const fs::path path = corpus.out() / kTokenIndexName;
  const TokenSetIndex index = TokenSetIndex::from_json(read_file(path), "index");
  const auto refusal = [&](const TokenSetIndex& changed) {
    write_file_atomic(path, changed.to_json());
    return message_of<DataError>([&] { TokenSet::open(corpus.out()).document(40); });
  };
  CHECK(refusal(index) == "");
  TokenSetIndex bad = index;
  ++bad.shards[1].tokens;
  CHECK(contains(refusal(bad), "not the shard"));
  bad = index;
  bad.shards[1].payload_hash[5] ^= 1;
  CHECK(contains(refusal(bad), "not the shard"));
  bad = index;
  std::swap(bad.shards[0], bad.shards[1]);
  CHECK(refusal(bad) == "");
  bad = index;
  bad.vocab_size = 300;
  CHECK(contains(refusal(bad), "not the shard"));
  bad = index;
  bad.shards[0].file = "../shard-00000.tokens";
  CHECK(contains(refusal(bad), "plain file name"));
  bad = index;
  bad.sources.resize(1);
  CHECK(contains(refusal(bad), "source"));
  for (const char* text : {"", "[]", "{\"format\":1}", "{\"format\":\"llmtrain-tokens\"}"}) {
    CHECK_THROWS_AS(TokenSetIndex::from_json(text, "index"), DataError);
  }
  for (const char* number : {"34455667788184467440737095516151", "2.0", "-1", "\"2\"", "null"}) {
    std::string text = index.to_json();
    const std::string key = "\"empty_documents\": ";
    const std::size_t at = text.find(key) + key.size();
    text.replace(at, text.find_first_of(",\n", at) - at, number);
    CAPTURE(number);
    CHECK(contains(message_of<DataError>([&] { TokenSetIndex::from_json(text, "index"); }),
                   "index: 'empty_documents' is n"));
  }
}

}  // namespace llmtrain::data
