#include "lib/base/utf8.hpp"

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("replace_invalid_utf8 keeps well-formed text and replaces every other byte") {
  const std::string good = "a\xC3\xA9\xE2\x82\xAC\xED\x9F\xBF\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF";
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(replace_invalid_utf8(good) == good);
  CHECK(replace_invalid_utf8("x\xFFy") == "x" + bad + "y");
  CHECK(replace_invalid_utf8("\xC0\xAF") == bad + bad);                      // overlong
  CHECK(replace_invalid_utf8("\xED\xA0\x80") == bad + bad + bad);            // surrogate
  CHECK(replace_invalid_utf8("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // above U+10FFFF
  CHECK(replace_invalid_utf8("\xE2\x82") == bad + bad);                      // cut off
  CHECK(replace_invalid_utf8("\xE2\x82z") == bad + bad + "z");
}

TEST_CASE("control characters are shown, not sent to the terminal") {
  CHECK(escape_controls("a \xC3\xA4 \xE2\x82\xAC \"'\\") == "a \xC3\xA4 \xE2\x82\xAC \"'\\");
  CHECK(escape_controls("\x1b[2J\n\t\x7f\r") == "\\x1b[2J\\x0a\\x09\\x7f\\x0d");
  CHECK(escape_controls(std::string_view("\0", 1)) == "\\x00");
  CHECK(escape_controls("\xC2\x9B"
                        "2J\xC2\xA0") == "\\xc2\\x9b2J\xC2\xA0");
  CHECK(escape_controls("\xFFz\x9B") == "\\xffz\\x9b");
}

TEST_CASE("UTF-8 validation accepts exactly the code points") {
  for (std::uint32_t code_point = 0; code_point < 0x110000; code_point += 7) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    append_utf8(code_point, text);
    REQUIRE(utf8_char_length(text) == text.size());
    REQUIRE(decode_utf8(text) == code_point);
    REQUIRE(utf8_char_length(std::string_view(text).substr(0, text.size() - 1)) == 0);
  }
  for (const std::string_view bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF", "\xE2\x28\xA1"}) {
    CHECK(utf8_char_length(bad) == 0);
  }
  CHECK(valid_utf8_prefix("abcdefgh\xC3\xA9\x80z") == 10);
  CHECK(invalid_utf8_prefix("\x80\x80z") == 2);
}

}  // namespace llmtrain
