#include "lib/data/pre_tokenizer.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::vector<std::string> split(const std::vector<std::string>& patterns, std::string_view text) {
  const PreTokenizer pre_tokenizer(patterns);
  std::vector<std::string> pieces;
  PreTokenizer::Worker(pre_tokenizer).split(text, [&](std::string_view piece) {
    pieces.emplace_back(piece);
  });
  return pieces;
}

using Pieces = std::vector<std::string>;
const std::string gpt2(kGpt2Pattern);
const std::string llama3(kLlama3Pattern);

}  // namespace

TEST_CASE("the GPT-2 pattern keeps a word with the space before it") {
  CHECK(split({gpt2}, "I'll  buy 12 eggs!\n\n x") ==
        Pieces{"I", "'ll", " ", " buy", " 12", " eggs", "!", "\n\n", " x"});
}

TEST_CASE("the Llama 3 pattern groups digits by three and line ends with what precedes them") {
  CHECK(split({llama3}, "x=12345;\n  y'LL") ==
        Pieces{"x", "=", "123", "45", ";\n", " ", " y", "'LL"});
}

TEST_CASE("the identifiers pattern keeps underscores and digits in words") {
  CHECK(split({std::string(kIdentifiersPattern)}, "  _M_x1 = __y->z2;\n") ==
        Pieces{" ", " _M_x1", " =", " __y", "->", "z2", ";", "\n"});
}

TEST_CASE("the lines pattern cuts before line ends, and long lines between words") {
  const std::string lines(kLinesPattern);
  CHECK(split({lines}, "a b;\n  c d\n\n") == Pieces{"a b;", "\n  c d", "\n\n"});
  const std::string half(100, 'x');
  CHECK(split({lines}, half + " " + half) == Pieces{half, " " + half});
  CHECK(split({lines}, half + half) == Pieces{half + half.substr(0, 28), half.substr(28)});
}

TEST_CASE("U+180E is no space, as in Unicode and Oniguruma") {
  CHECK(split({gpt2}, " \u180e") == Pieces{" \u180e"});
  CHECK(split({gpt2}, "a \u3000\u0085\u2028b") == Pieces{"a", " \u3000\u0085", "\u2028", "b"});
}

TEST_CASE("letters and digits that Unicode 15 and 16 added are letters and digits") {
  // U+2EC6D is a CJK ideograph of Unicode 15.1, U+1E4F1 a digit of Unicode 15.
  CHECK(split({gpt2}, "a\U0002EC6Db's") == Pieces{"a\U0002EC6Db", "'s"});
  CHECK(split({llama3}, "1\U0001E4F1!") == Pieces{"1\U0001E4F1", "!"});
  CHECK(split({R"(\P{L})"}, "a\U0002EC6D1") == Pieces{"a\U0002EC6D", "1"});
}

TEST_CASE("patterns run one after the other and text between matches is a piece") {
  CHECK(split({R"(\p{N})", R"(b+)"}, "abbc12d") == Pieces{"a", "bb", "c", "1", "2", "d"});
  CHECK(split({}, "any text") == Pieces{"any text"});
  CHECK(split({gpt2}, "").empty());
}

TEST_CASE("bytes that are not UTF-8 are pieces of their own") {
  CHECK(split({gpt2}, "ab\xFF\x80 cd") == Pieces{"ab", "\xFF\x80", " cd"});
  CHECK(split({}, "ab\xFF") == Pieces{"ab", "\xFF"});
}

TEST_CASE("pieces joined are the text") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const std::string text = generated_document(seed);
    for (const std::vector<std::string>& patterns : {Pieces{gpt2}, Pieces{llama3, gpt2}}) {
      std::string joined;
      for (const std::string& piece : split(patterns, text)) joined += piece;
      CHECK(joined == text);
    }
  }
}

TEST_CASE("syntax that engines read differently is refused by name") {
  const auto refusal = [](std::string pattern) {
    return message_of<DataError>([&] { PreTokenizer({std::move(pattern)}); });
  };
  CHECK(contains(refusal(R"(\w+)"), "'\\w'"));
  CHECK(contains(refusal(R"(a.b)"), "'.'"));
  CHECK(contains(refusal(R"(^a)"), "'^'"));
  CHECK(contains(refusal(R"([a[b]])"), "class within a class"));
  CHECK(contains(refusal(R"([a&&b])"), "intersection"));
  CHECK(contains(refusal(R"([\S])"), "'\\S' in a class"));
  CHECK(contains(refusal(R"(a{,3})"), "repeat"));
  CHECK(contains(refusal(R"(a{2}+)"), "suffix"));
  CHECK(contains(refusal(R"((?m)a)"), "group option"));
  CHECK(contains(refusal(R"((?i:ss))"), "group option"));
  CHECK(contains(refusal(R"(a(*SKIP)b)"), "byte 1: '(*', the start of a verb: engines differ"));
  CHECK(contains(refusal(R"((*UTF)ab)"), "use a file without it"));
  CHECK(contains(refusal(R"(\p{Han})"), "'Han'"));
  CHECK(contains(refusal(R"(\)"), "backslash"));
  CHECK(contains(refusal(R"([a)"), "without an end"));
  CHECK(contains(refusal(R"(a*)"), "empty string"));
  CHECK(contains(refusal(R"(a))"), "correct the pattern"));
  CHECK(contains(refusal("\xFF"), "UTF-8"));
  CHECK(refusal(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|\d{1,3}(?=x)|[^\s\p{L}]++)") ==
        "");
}

TEST_CASE("a pattern that backtracks without end is stopped") {
  const std::string text = std::string(200, 'a') + "dx";
  const std::string message =
      message_of<DataError>([&] { split({R"((?:a|aa|aaa)+[bc]x)"}, text); });
  CHECK(contains(message, "simpler pattern"));
}

}  // namespace llmtrain::data
