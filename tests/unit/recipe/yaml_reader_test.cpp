#include "lib/recipe/yaml_reader.hpp"

#include <map>

#include <doctest/doctest.h>

#include "lib/recipe/yaml_text.hpp"

namespace llmtrain::recipe {

namespace {

struct Result {
  bool usable;
  Node root;
  std::vector<Issue> issues;
};

Result read(std::string_view text) {
  Result result;
  Issues issues;
  const auto source = std::make_shared<Source>(Source{Source::Kind::file, "f", 0});
  result.usable = read_yaml(text, source, result.root, issues);
  result.issues = issues.sorted();
  return result;
}

std::string repeated(std::string_view text, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("the tree keeps texts as written, whether they are quoted, and positions from 1") {
  Result result =
      read("a: 010\r\nb:\n  - \"x\" # c\n  - {c: no, \xc3\xa9: ~}\nd: |\n  two\n  lines\ne:\n");

  REQUIRE(result.usable);
  CHECK(result.issues.empty());
  CHECK(result.root.find("a")->text == "010");
  const Node& list = *result.root.find("b");
  REQUIRE(list.items.size() == 2);
  CHECK(list.where.line == 2);
  CHECK(list.where.column == 1);
  CHECK(list.items[0].quoted);
  CHECK(list.items[0].where.line == 3);
  CHECK(list.items[0].where.column == 5);
  CHECK(list.items[1].members[0].value.text == "no");
  CHECK(list.items[1].members[1].where.column == 13);
  CHECK(list.items[1].members[1].value.kind == Node::Kind::null);
  CHECK(result.root.find("d")->text == "two\nlines\n");
  CHECK(result.root.find("e")->kind == Node::Kind::null);
}

TEST_CASE("what a recipe has no need for is refused at its position") {
  const std::map<std::string, std::string> cases = {
      {"a: 1\nb: &x 2\n", "f:2:4: anchors (&name) are not used in recipes"},
      {"a: \"x\\_\"\n", "f:1:4: the escapes \\N and \\_ are not used in recipes"},
      {"\"\\N\": 1\n", "f:1:1: the escapes \\N and \\_ are not used in recipes"},
      {"a: &x [1]\n", "f:1:4: anchors (&name) are not used in recipes"},
      {"b: *x\n", "f:1:4: is not valid YAML: the referenced anchor is not defined"},
      {"a: !!int 3\n", "f:1:4: tags (!name) are not used in recipes"},
      {"a: ! 3\n", "f:1:4: tags (!name) are not used in recipes"},
      {"a: !t {b: 1}\n", "f:1:4: tags (!name) are not used in recipes"},
      {"a: 1\n---\nb: 1\n", "f:2:1: something follows the end of the document"},
      {"[], x", "f:1:3: something follows the end of the document"},
      {"%YAML 1.2\n---\na: 1\n", "f:1:1: directives (%...) are not used in recipes"},
      {"a:\n\tb: 1\n", "f:2:1: a tab is used as indentation"},
      {"a:\n  \tb: 1\n", "f:2:3: a tab is used as indentation"},
      {"a: \x01\n", "f:1:4: holds the control character 0x01"},
      {std::string("a: \0b\n", 7), "f:1:4: holds the control character 0x00"},
      {"a: \"\\0\"\n", "f:1:4: text holds a NUL character"},
      {"a: \xff\n", "f:1:4: is not UTF-8 text"},
      {"a: \xc0\xaf\n", "f:1:4: is not UTF-8 text"},
      {"\xff\xfe"
       "a",
       "f:1:1: is not UTF-8 text"},
      {"a: \"x\nb: \"y\"\n", "f:1:4: the quote \" is not closed on its line"},
      {"a: 'it''s\nb: 1\n", "f:1:4: the quote ' is not closed on its line"},
      {"a: \"x\\\"\n", "f:1:4: the quote \" is not closed on its line"},
      {"a: 1\nb\n", "f:2:1: there is no `:` behind the key `b`"},
      {"? a\n: b\n", "f:1:3: there is no `:` behind the key `a`"},
      {"{a, b: 1}\n", "f:1:2: there is no `:` behind the key `a`"},
      {"[a]: 1\n", "f:1:1: a key must be text"},
      {": 1\n", "f:1:1: a key is missing before `:`"},
      {"~: 1\n", "f:1:1: a key is missing before `:`"},
      {"a: [1, 2\nb: 3\n", "f:2:2: is not valid YAML: end of sequence flow not found"},
      {"a: b: c\n", "f:1:5: is not valid YAML: illegal map value"},
      {"a: @x\n", "f:1:4: is not valid YAML: unknown token"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    const Result result = read(text);
    CHECK_FALSE(result.usable);
    REQUIRE(result.issues.size() == 1);
    CHECK(result.issues[0].text().substr(0, message.size()) == message);
  }
}

TEST_CASE("duplicate keys and merge keys are reported and the rest is read on") {
  const Result result = read("a: {b: 1, c: 2, b: 3}\n<<: {x: 1}\nd: [{e: 1, e: 2}]\nf: 1\n");

  CHECK(result.usable);
  REQUIRE(result.issues.size() == 3);
  CHECK(result.issues[0].text() ==
        "f:1:17: a.b: duplicate key, first given at f:1:5 (keep one of them)");
  CHECK(result.issues[1].text().starts_with("f:2:1: <<: merge keys are not used"));
  CHECK(result.issues[2].key_path == "d.0.e");
  REQUIRE(result.root.members.size() == 3);
  CHECK(result.root.members[0].value.members[0].value.text == "1");
}

TEST_CASE("quotes may hold quotes, and keys may be quoted") {
  Result result = read("\"a\" : 'it''s'\n'b': \"say \\\"x\\\" \\\\\"\n\"c: d\": e'f\"\n");

  REQUIRE(result.usable);
  CHECK(result.root.find("a")->text == "it's");
  CHECK(result.root.find("b")->text == "say \"x\" \\");
  CHECK(result.root.find("c: d")->text == "e'f\"");
}

TEST_CASE("nesting is bounded before any recursion could be deep") {
  CHECK(read(repeated("[", kMaxDepth) + repeated("]", kMaxDepth)).usable);
  for (const char* piece : {"[", "{", "{a: ", "[{a: ", "- ", "? ", ": ", "a: [", "- {"}) {
    CAPTURE(piece);
    const Result result = read(repeated(piece, 100000));
    CHECK_FALSE(result.usable);
    REQUIRE(result.issues.size() == 1);
  }
  CHECK(read(repeated("- ", 100)).issues[0].text() == "f:1:129: nested deeper than 64 levels");
  CHECK(read(repeated("[", 100)).issues[0].text() == "f:1:65: nested deeper than 64 levels");
}

TEST_CASE("a file of more than one MiB is refused unread, one of one MiB is read") {
  std::string text = "a: 1\n#";
  text.resize(kMaxFileBytes, 'x');
  CHECK(read(text).usable);
  text += 'x';
  const Result result = read(text);
  CHECK_FALSE(result.usable);
  CHECK(result.issues[0].text() == "f: has 1048577 bytes, a recipe has at most 1048576");
}

TEST_CASE("a mapping of one MiB with all keys distinct or all keys equal is read") {
  std::string distinct;
  for (int i = 0; distinct.size() + 16 < kMaxFileBytes; ++i) {
    distinct += "k" + std::to_string(i) + ": 1\n";
  }
  CHECK(read(distinct).usable);
  const Result equal = read(repeated("a: 1\n", 200000));
  CHECK(equal.usable);
  CHECK(equal.root.members.size() == 1);
  CHECK(equal.issues.size() == 1000);
}

TEST_CASE("UTF-8 sequences are measured and impossible ones refused") {
  CHECK(utf8_sequence("a") == 1);
  CHECK(utf8_sequence("\xc3\xa9") == 2);
  CHECK(utf8_sequence("\xe2\x82\xac") == 3);
  CHECK(utf8_sequence("\xf0\x9f\x98\x80") == 4);
  for (const char* bad : {"\x80", "\xc3", "\xc1\x81", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82"}) {
    CAPTURE(bad);
    CHECK(utf8_sequence(bad) == 0);
  }
  CHECK(read("\xef\xbb\xbf"
             "a: 1\n")
            .usable);
}

}  // namespace llmtrain::recipe
