#include "lib/data/source.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/utf8.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

bool all_wanted(std::string_view) { return true; }

std::vector<SourceFile> list(std::vector<SourceOptions> sources) {
  return list_source_files(sources);
}

SourceOptions options(const std::filesystem::path& path) {
  SourceOptions source;
  source.path = path;
  return source;
}

std::vector<std::string> names(const std::vector<SourceFile>& files) {
  std::vector<std::string> result;
  for (const SourceFile& file : files) result.push_back(file.name);
  return result;
}

std::vector<Document> documents_of(const SourceFile& file) {
  return read_documents(file, 0, file.size_bytes, all_wanted);
}

std::string refusal(const std::filesystem::path& path) {
  return message_of<DataError>([&] { documents_of(list({options(path)}).front()); });
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("directories are listed recursively in byte order, without hidden files") {
  const TemporaryDirectory directory;
  for (const char* name : {"b/z.txt", "b/a.txt", "a.txt", "B.txt", ".git/x", "c.jsonl", "b/.h"}) {
    directory.write(name, "text");
  }
  const auto files = list({options(directory.path())});
  CHECK(names(files) == Names{"B.txt", "a.txt", "b/a.txt", "b/z.txt", "c.jsonl"});
  CHECK(files[4].format == SourceFormat::jsonl);
  CHECK(files[0].format == SourceFormat::text);
  CHECK(files[0].size_bytes == 4);
}

TEST_CASE("patterns name files and directories relative to the part without wildcards") {
  const TemporaryDirectory directory;
  for (const char* name : {"x/1.txt", "x/2.txt", "x/3.md", "y1/q.txt", "y2/q.txt"}) {
    directory.write(name, "text");
  }
  CHECK(names(list({options(directory.path() / "x" / "*.txt")})) == Names{"1.txt", "2.txt"});
  CHECK(names(list({options(directory.path() / "y?")})) == Names{"y1/q.txt", "y2/q.txt"});
  CHECK(names(list({options(directory.path() / "x" / "3.md")})) == Names{"3.md"});
}

TEST_CASE("sources without files and files named twice are refused") {
  const TemporaryDirectory directory;
  directory.write("x/1.txt", "text");
  std::filesystem::create_directories(directory.path() / "empty");
  const auto refused = [&](std::vector<SourceOptions> sources) {
    return message_of<DataError>([&] { list(std::move(sources)); });
  };
  CHECK(contains(refused({}), "no data source"));
  CHECK(contains(refused({options(directory.path() / "empty")}), "no file there"));
  CHECK(contains(refused({options(directory.path() / "absent")}), "absent"));
  CHECK(contains(refused({options(directory.path() / "absent*")}), "no file there"));
  CHECK(contains(refused({options(directory.path()), options(directory.path() / "x" / "1.txt")}),
                 "named twice"));
  CHECK(contains(refused({options("/dev/null")}), "not a regular file"));
  SourceOptions tiny = options(directory.path());
  tiny.max_document_bytes = 3;
  CHECK_THROWS_AS(list({tiny}), RecipeError);
}

TEST_CASE("JSONL gives one document per line, blank lines and line ends aside") {
  const TemporaryDirectory directory;
  directory.write(
      "a.jsonl",
      "{\"text\": \"one\"}\n\n{\"id\": 3, \"text\": \"t\\u00e9\\n\"}\r\n{\"text\":\"\"}");
  const auto file = list({options(directory.path())}).front();
  const auto documents = documents_of(file);
  REQUIRE(documents.size() == 3);
  CHECK(documents[0].text == "one");
  CHECK(documents[1].text == "t\u00e9\n");
  CHECK(documents[1].offset == 17);
  CHECK(documents[2].text == "");
  CHECK(!documents[0].whole_file);
}

TEST_CASE("a line that is blank but for its line end is no document") {
  const TemporaryDirectory directory;
  for (const char* blank : {"\n", "\r\n", " \t\r\n"}) {
    const std::string text = "{\"text\": \"one\"}\r\n" + std::string(blank) + "{\"text\": \"two\"}";
    const auto documents = documents_of(list({options(directory.write("a.jsonl", text))}).front());
    REQUIRE(documents.size() == 2);
    CHECK(documents[1].text == "two");
  }
}

TEST_CASE("bad JSONL lines are refused with file and line") {
  const TemporaryDirectory directory;
  const auto with = [&](std::string_view line) {
    return refusal(directory.write("a.jsonl", "{\"text\": \"one\"}\n\n" + std::string(line)));
  };
  CHECK(contains(with("{\"txt\": \"x\", \"id\": 1}"), "a.jsonl:3: no key 'text'"));
  CHECK(contains(with("{\"txt\": \"x\", \"id\": 1}"), "'id', 'txt'"));
  CHECK(contains(with("{\"text\": 5}"),
                 "a.jsonl:3: 'text' is number, not a string; correct "
                 "the line, or set text_key to a key that holds"));
  CHECK(contains(with("{\"text\": \"x\""), "a.jsonl:3: not valid JSON"));
  CHECK(contains(with("{\"text\": \"x\""), "; correct the line, or leave it out"));
  CHECK(contains(with("[1]"), "a.jsonl:3: not a JSON object; correct the line, or leave it out"));
  CHECK(contains(with("{\"text\": \"\xFF\"}"), "a.jsonl:3: not valid JSON"));
  SourceOptions keyed = options(directory.write("a.jsonl", "{\"body\": \"x\"}\n"));
  keyed.text_key = "body";
  CHECK(documents_of(list({keyed}).front()).front().text == "x");
}

TEST_CASE("lines with a prompt and a completion are documents that know where the prompt ends") {
  const TemporaryDirectory directory;
  SourceOptions source = options(directory.write(
      "a.jsonl", "{\"q\":\"two + two = \",\"a\":\"four\"}\n{\"q\":\"\",\"a\":\"just this\"}\n"));
  source.prompt_key = "q";
  source.completion_key = "a";
  const auto documents = documents_of(list({source}).front());
  REQUIRE(documents.size() == 2);
  CHECK(documents[0].text == "two + two = four");
  CHECK(documents[0].prompt_bytes == 12);
  CHECK(documents[1].text == "just this");
  CHECK(documents[1].prompt_bytes == 0);
  const auto refused = [&](std::string_view line) {
    source.path = directory.write("a.jsonl", std::string(line) + "\n");
    return message_of<DataError>([&] { documents_of(list({source}).front()); });
  };
  CHECK(contains(refused("{\"q\":\"x\",\"a\":\"\"}"), "a.jsonl:1: 'a' is empty: there is nothing"));
  CHECK(contains(refused("{\"q\":\"x\"}"), "no key 'a'; the line has 'q'; set completion_key"));
  CHECK(contains(refused("{\"a\":\"x\"}"), "no key 'q'; the line has 'a'; set prompt_key"));
  CHECK(contains(refused("{\"q\":1,\"a\":\"x\"}"),
                 "'q' is number, not a string; correct the line, or set prompt_key"));
  source.path = directory.write("a.txt", "text");
  CHECK(contains(message_of<DataError>([&] { list({source}); }), "set format: jsonl"));
  source.prompt_key = "";
  CHECK_THROWS_AS(list({source}), RecipeError);
}

TEST_CASE("binary junk is refused with its offset, a stray byte is kept") {
  const TemporaryDirectory directory;
  CHECK(contains(refusal(directory.write("a.txt", std::string("abc\0d", 5))),
                 "NUL byte at offset 3"));
  const std::string text(1000, 'x');
  CHECK(contains(refusal(directory.write("a.txt", text + std::string(20, '\xE9'))),
                 "20 of 1020 bytes are not UTF-8, the first at offset 1000"));
  CHECK(refusal(directory.write("a.txt", text + "\xE9")) == "");
}

TEST_CASE("cut text files give the same documents from any start, and all of their bytes") {
  const TemporaryDirectory directory;
  std::string text;
  for (std::uint64_t seed = 0; seed < 10; ++seed) text += generated_document(seed);
  text += std::string(5000, 'x');  // no line end for several documents
  for (int i = 0; i < 2000; ++i) text += "\u4e2d";
  SourceOptions source = options(directory.write("a.txt", text));
  for (const std::uint64_t size : {1024u, 1500u, 4096u, 1u << 20}) {
    source.max_document_bytes = size;
    const SourceFile file = list({source}).front();
    const auto documents = documents_of(file);
    std::string joined;
    std::vector<std::uint64_t> starts;
    for (const Document& document : documents) {
      CHECK(document.offset == joined.size());
      starts.push_back(document.offset);
      joined += document.text;
      CHECK(valid_utf8_prefix(document.text) == document.text.size());
      if (size < text.size()) CHECK(document.text.size() <= size + size / 4 + 4);
    }
    CHECK(joined == text);
    CHECK(documents.front().whole_file == (size > text.size()));
    std::size_t next = 0;
    for (std::uint64_t offset = 0; offset <= text.size(); offset += 97) {
      while (next < starts.size() && starts[next] < offset) ++next;
      CHECK(next_document_start(file, offset) ==
            (next < starts.size() ? starts[next] : text.size()));
    }
  }
}

TEST_CASE("JSONL starts are line starts") {
  const TemporaryDirectory directory;
  const std::string text = "{\"text\":\"a\"}\n{\"text\":\"bb\"}\n";
  const SourceFile file = list({options(directory.write("a.jsonl", text))}).front();
  for (std::uint64_t offset = 0; offset <= text.size(); ++offset) {
    CHECK(next_document_start(file, offset) == (offset == 0 ? 0u : offset <= 13 ? 13u : 27u));
  }
}

TEST_CASE("the held-out rule divides names by their hash alone") {
  int held = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string name = "file" + std::to_string(i);
    int parts = 0;
    for (std::uint64_t r = 0; r < 20; ++r) parts += is_held_out(name, {20, r}) ? 1 : 0;
    REQUIRE(parts == 1);
    held += is_held_out(name, {20, 0}) ? 1 : 0;
  }
  CHECK(held > 800);
  CHECK(held < 1200);
  // XXH3-64 of the name: fixed for good, since published figures depend on it.
  CHECK(is_held_out("bits/stl_vector.h", {1000, hash64("bits/stl_vector.h") % 1000}));
  CHECK_THROWS_AS(is_held_out("x", {20, 20}), RecipeError);
  CHECK_THROWS_AS(is_held_out("x", {0, 0}), RecipeError);
}

TEST_CASE("documents that are not wanted are not parsed") {
  const TemporaryDirectory directory;
  directory.write("a.jsonl", "not json\n{\"text\":\"b\"}\n");
  const SourceFile file = list({options(directory.path())}).front();
  const auto documents = read_documents(file, 0, file.size_bytes,
                                        [](std::string_view name) { return name == "a.jsonl@9"; });
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].text == "b");
}

}  // namespace llmtrain::data
