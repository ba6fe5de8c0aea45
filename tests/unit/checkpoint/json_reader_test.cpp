#include "lib/checkpoint/json_reader.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace llmtrain::checkpoint {

namespace {

std::string read_one_string(const std::string& json) {
  JsonReader reader(json, "test");
  std::string text = reader.read_string(64);
  reader.finish();
  return text;
}

Scalar read_one_scalar(const std::string& json) {
  JsonReader reader(json, "test");
  Scalar scalar = reader.read_scalar(64);
  reader.finish();
  return scalar;
}

void skip_all(const std::string& json) {
  JsonReader reader(json, "test");
  reader.skip_value();
  reader.finish();
}

}  // namespace

TEST_CASE("strings: escapes, surrogate pairs and raw UTF-8 are read, their forgeries refused") {
  CHECK(read_one_string(R"("a\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude00")") ==
        "a\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  CHECK(read_one_string("\"\xC3\xA9\xF4\x8F\xBF\xBF\"") == "\xC3\xA9\xF4\x8F\xBF\xBF");
  for (const std::string bad : {"\"",
                                "\"a",
                                "a\"",
                                "\"\\\"",
                                "\"\\x\"",
                                "\"\\u12\"",
                                "\"\\u12g4\"",
                                "\"\\ud800\"",
                                "\"\\udc00\"",
                                "\"\\ud800\\u0041\"",
                                "\"\\ud800x\"",
                                "\"\n\"",
                                "\"\x01\"",
                                "\"\x80\"",
                                "\"\xC0\xAF\"",
                                "\"\xC3\"",
                                "\"\xE0\x80\x80\"",
                                "\"\xED\xA0\x80\"",
                                "\"\xF0\x8F\xBF\xBF\"",
                                "\"\xF4\x90\x80\x80\"",
                                "\"\xF5\x80\x80\x80\"",
                                "\"a\" x",
                                "\"\\u+123\"",
                                "\"\\u-001\""}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(read_one_string(bad), CheckpointError);
  }
  CHECK_THROWS_AS(read_one_string('"' + std::string(65, 'a') + '"'), CheckpointError);
  CHECK(read_one_string('"' + std::string(64, 'a') + "\"  \n").size() == 64);
}

TEST_CASE("append_json_string round-trips every code point below 0x80 and multi-byte text") {
  std::string text;
  for (char c = 1; c < 0x7f; ++c) text += c;
  text += "\xE2\x82\xAC";
  std::string json;
  append_json_string(json, text);
  JsonReader reader(json, "test");
  CHECK(reader.read_string(256) == text);
}

TEST_CASE("numbers: only JSON's own grammar, and integers stay integers") {
  CHECK(read_one_scalar("12") == Scalar(std::int64_t{12}));
  CHECK(read_one_scalar("-9223372036854775808") ==
        Scalar(std::int64_t(-9223372036854775807LL - 1)));
  CHECK(read_one_scalar("1.5e3") == Scalar(1500.0));
  CHECK(read_one_scalar("0.1") == Scalar(0.1));
  CHECK(read_one_scalar("true") == Scalar(true));
  CHECK(read_one_scalar(" false ") == Scalar(false));
  for (const char* bad : {"01", "-", "+1", "1.", ".5", "1e", "0x1", "1e999", "9223372036854775808",
                          "nan", "Infinity", "null", "tru", "", "1 2", "-01", "1_0"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(read_one_scalar(bad), CheckpointError);
  }
  for (const char* bad : {"-1", "1.0", "1e3", "18446744073709551616", "\"1\"", "00", "[1]"}) {
    CAPTURE(bad);
    JsonReader reader(bad, "test");
    CHECK_THROWS_AS(reader.read_unsigned(), CheckpointError);
  }
  JsonReader reader("18446744073709551615", "test");
  CHECK(reader.read_unsigned() == 18446744073709551615u);
}

TEST_CASE("skip_value passes over any valid value and refuses broken and deep ones") {
  for (const char* good : {"null", "1", "\"x\"", "[]", "{}", "[[],{},[1,2]]",
                           R"({"a":{"b":[1,{"c":null}]},"d":-1.5e-3})"}) {
    CAPTURE(good);
    CHECK_NOTHROW(skip_all(good));
  }
  for (const char* bad : {"[", "{", "[1,]", "{\"a\":1,}", "[,1]", "{\"a\"}", "{\"a\":}", "{a:1}",
                          "[1 2]", "[1}", "{]", "", "nul", "[1]]", "{\"a\":1 \"b\":2}"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(skip_all(bad), CheckpointError);
  }
  CHECK_NOTHROW(skip_all(std::string(64, '[') + std::string(64, ']')));
  CHECK_THROWS_AS(skip_all(std::string(65, '[') + std::string(65, ']')), CheckpointError);
  CHECK_THROWS_AS(skip_all(std::string(1'000'000, '[')), CheckpointError);
}

TEST_CASE("file names from a manifest are plain and messages never carry control characters") {
  for (const char* good : {"model.safetensors", "model-00001-of-00002.safetensors", "a_b"}) {
    CHECK(is_plain_file_name(good));
  }
  for (const std::string bad :
       {"", ".", "..", ".hidden", "a/b", "/etc/passwd", "..\\x", "a b", "%s"}) {
    CAPTURE(bad);
    CHECK_FALSE(is_plain_file_name(bad));
  }
  CHECK_FALSE(is_plain_file_name(std::string("a\0b", 3)));
  CHECK_FALSE(is_plain_file_name(std::string(256, 'a')));
  CHECK(printable("a\x1b[2J\n") == "a?[2J?");
  CHECK(printable(std::string(100, 'x')).size() == 83);
}

}  // namespace llmtrain::checkpoint
