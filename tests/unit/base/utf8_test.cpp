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

}  // namespace llmtrain
