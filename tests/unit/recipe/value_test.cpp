#include "lib/recipe/value.hpp"

#include <cmath>
#include <limits>
#include <map>

#include <doctest/doctest.h>

#include "lib/recipe/issue.hpp"
#include "lib/recipe/scalar.hpp"
#include "lib/recipe/yaml_reader.hpp"

namespace llmtrain::recipe {

namespace {

Node node_of(const std::string& text) {
  Node node;
  Issues issues;
  const auto source = std::make_shared<Source>(Source{Source::Kind::file, "f", 0});
  REQUIRE(read_yaml(text, source, node, issues));
  REQUIRE(issues.empty());
  return node;
}

// The value that `text` has as a T, or nothing.
template <class T>
std::optional<T> value_of(const std::string& text, const Rule& rule = {}) {
  T value{};
  Problems problems;
  const bool good = Codec<T>::read(node_of(text), rule, value, problems);
  CHECK(good == problems.empty());
  return good ? std::optional<T>(value) : std::nullopt;
}

template <class T>
void check_round_trip(const T& value) {
  const std::string text = Codec<T>::write(value, {});
  CAPTURE(text);
  const auto read = value_of<T>(text);
  REQUIRE(read.has_value());
  CHECK(*read == value);
}

}  // namespace

TEST_CASE("only true and false are bools") {
  CHECK(value_of<bool>("true") == true);
  CHECK(value_of<bool>("false") == false);
  for (const char* bad :
       {"yes", "no", "on", "off", "True", "FALSE", "1", "0", "\"true\"", "~", "[]"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<bool>(bad).has_value());
  }
}

TEST_CASE("integers are whole decimal numbers, however they are written") {
  CHECK(value_of<int>("3_000") == 3000);
  CHECK(value_of<int>("1e3") == 1000);
  CHECK(value_of<int>("-5") == -5);
  CHECK(value_of<int>("+5") == 5);
  CHECK(value_of<int>("2.0") == 2);
  CHECK(value_of<int>("0") == 0);
  CHECK(value_of<int>("-2147483648") == std::numeric_limits<int>::min());
  CHECK(value_of<std::int64_t>("-9223372036854775808") == std::numeric_limits<std::int64_t>::min());
  CHECK(value_of<std::uint64_t>("18446744073709551615") == ~std::uint64_t{0});
  for (const char* bad :
       {"010",   "00",    "-01",   "0x10", "0o7",   "1.5", "2147483648", "-2147483649",
        "1e10",  "1_",    "_1",    "1__0", "1e",    "1e+", "--1",        "3 4",
        "\"3\"", "three", "1e400", ".nan", "1,000", "~"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<int>(bad).has_value());
  }
  CHECK_FALSE(value_of<std::uint64_t>("18446744073709551616").has_value());
  CHECK_FALSE(value_of<std::uint64_t>("-1").has_value());
}

TEST_CASE("numbers are finite decimals") {
  CHECK(value_of<double>("1e-4") == 1e-4);
  CHECK(value_of<double>("3.0e-4") == 3.0e-4);
  CHECK(value_of<double>(".5") == 0.5);
  CHECK(value_of<double>("-1_0.2_5") == -10.25);
  CHECK(value_of<double>("7") == 7.0);
  for (const char* bad :
       {".nan", ".NaN", "nan", ".inf", "-.inf", "+.INF", "infinity", "1e999", "1e-999", "010.5",
        "0x1p3", "1.2.3", "1 000", "\"1.0\"", ".", "-", "e5"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<double>(bad).has_value());
  }
}

TEST_CASE("text is taken literally, and bools, nulls and lists are not text") {
  CHECK(value_of<std::string>("010") == "010");
  CHECK(value_of<std::string>("no") == "no");
  CHECK(value_of<std::string>("\"true\"") == "true");
  CHECK(value_of<std::string>("\"\"") == "");
  CHECK_FALSE(value_of<std::string>("true").has_value());
  CHECK_FALSE(value_of<std::string>("~").has_value());
  CHECK_FALSE(value_of<std::string>("[a]").has_value());
  CHECK_FALSE(value_of<std::string>("\"\"", not_empty()).has_value());
  CHECK_FALSE(value_of<std::string>("c", any_of({"a", "b"})).has_value());
}

TEST_CASE("quantities take their units and nothing else") {
  CHECK(value_of<Count>("2M")->value == 2'000'000u);
  CHECK(value_of<Count>("\"64Ki\"")->value == 65536u);
  CHECK(value_of<Count>("1e6")->value == 1'000'000u);
  CHECK(value_of<Count>("9007199254740993")->value == 9007199254740993u);
  CHECK(value_of<Bytes>("16GiB")->value == std::uint64_t{16} << 30);
  CHECK(value_of<SizeOrShare>("8GiB") == SizeOrShare::size(std::uint64_t{8} << 30));
  CHECK(value_of<SizeOrShare>("4096") == SizeOrShare::size(4096));
  CHECK(value_of<SizeOrShare>("0.6") == SizeOrShare::of_all(0.6));
  CHECK(value_of<SizeOrShare>("1") == SizeOrShare::of_all(1));
  CHECK(value_of<Duration>("90")->seconds == 90.0);
  CHECK(value_of<Duration>("23h30m")->seconds == 84600.0);
  CHECK(value_of<Span>("2_000") == Span::steps(2000));
  CHECK(value_of<Span>("2k steps") == Span::steps(2000));
  CHECK(value_of<Span>("1.5%") == Span::percents(1.5));
  CHECK(value_of<Span>("2B tok") == Span::tokens(2'000'000'000));
  CHECK(value_of<Interval>("1000") == Interval::every_steps(1000));
  CHECK(value_of<Interval>("30min") == Interval::every_seconds(1800));
  CHECK(value_of<Interval>("30m") == Interval::every_seconds(1800));
  CHECK(value_of<Interval>("30M") == Interval::every_steps(30'000'000));
  for (const char* bad :
       {"-1", "1.5", "2Q", "010", "01k", "5 parsecs", "[]", "~", "true", "\"\"", "k"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<Count>(bad).has_value());
    CHECK_FALSE(value_of<Bytes>(bad).has_value());
    CHECK_FALSE(value_of<Span>(bad).has_value());
    CHECK_FALSE(value_of<Interval>(bad).has_value());
  }
  for (const char* bad : {"-1", "010", "5 parsecs", "1h5", "~", ".inf", "\"\""}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<Duration>(bad).has_value());
  }
  for (const char* bad : {"0", "-0.5", "1.5", "60%", "2Q", "[]", ".nan"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<SizeOrShare>(bad).has_value());
  }
  for (const char* bad : {"101%", "-1%", "\"%\"", "2 tok tok", ".nan%"}) {
    CAPTURE(bad);
    CHECK_FALSE(value_of<Span>(bad).has_value());
  }
}

TEST_CASE("a span in steps rounds percents to the nearest step and tokens up") {
  CHECK(Span::steps(7).in_steps(100, 0) == 7u);
  CHECK(Span::percents(1).in_steps(149, 0) == 1u);
  CHECK(Span::percents(1).in_steps(150, 0) == 2u);
  CHECK(Span::tokens(1000).in_steps(10, 999) == 2u);
  CHECK(Span::tokens(999).in_steps(10, 999) == 1u);
  CHECK_THROWS_AS(Span::tokens(1).in_steps(10, 0), InternalError);
}

TEST_CASE("optional takes null, Auto takes auto, lists take lists of their element") {
  CHECK_FALSE(value_of<std::optional<int>>("null").value().has_value());
  CHECK(value_of<std::optional<int>>("3").value() == 3);
  CHECK_FALSE(value_of<std::optional<int>>("none").has_value());
  CHECK(value_of<Auto<int>>("auto").value().is_auto());
  CHECK(value_of<Auto<int>>("3")->value == 3);
  CHECK_FALSE(value_of<Auto<int>>("\"auto\"").has_value());
  CHECK_FALSE(value_of<Auto<int>>("null").has_value());
  CHECK(value_of<std::vector<int>>("[1, 2]") == std::vector<int>{1, 2});
  CHECK(value_of<std::vector<int>>("[]") == std::vector<int>{});
  CHECK_FALSE(value_of<std::vector<int>>("[1, x]").has_value());
  CHECK_FALSE(value_of<std::vector<int>>("1").has_value());
  CHECK_FALSE(value_of<std::vector<int>>("[1, 2, 3]", length(2)).has_value());
}

TEST_CASE("ranges hold with and without their ends") {
  CHECK(value_of<double>("0", at_least(0)).has_value());
  CHECK_FALSE(value_of<double>("0", above(0)).has_value());
  CHECK(value_of<double>("1", at_most(1)).has_value());
  CHECK_FALSE(value_of<double>("1", below(1)).has_value());
  CHECK(range_text(above(0) & at_most(1)) == "> 0 and <= 1");
  CHECK(range_violation(between(2, 3), 4) == "must be >= 2 and <= 3");
}

TEST_CASE("every value is written so that it reads back the same") {
  for (const double value : {0.0, 1.0, -1.0, 0.1, 3e-4, 1e-8, 1e300, 5e-324, 1e16, 123456789.125}) {
    if (std::fpclassify(value) != FP_SUBNORMAL) check_round_trip(value);
  }
  for (const std::int64_t value : {std::int64_t{0}, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()}) {
    check_round_trip(value);
  }
  check_round_trip(~std::uint64_t{0});
  check_round_trip(true);
  for (const char* text :
       {"",         "a",          "runs/%name", "-a",  "- a",  "a: b", "a #b", "#a",   "\"",
        "'",        "\\",         "null",       "~",   "true", "No",   "auto", "010",  "1e5",
        ".inf",     "two\nlines", "tab\t",      " a",  "a ",   "[x]",  "{x}",  "a, b", "&a",
        "*a",       "!a",         "%a",         "@a",  "`a",   "?",    ":",    "x:",   "\x7f\x01",
        "\xc3\xa9", "2M",         "1%",         "---", "...",  "<<",   "="}) {
    check_round_trip(std::string(text));
  }
  check_round_trip(Count(1ull << 62));
  check_round_trip(Bytes(12345));
  check_round_trip(SizeOrShare::size(12345));
  for (const double share : {1.0, 0.6, 1.0 / 3.0}) check_round_trip(SizeOrShare::of_all(share));
  for (const double seconds : {0.0, 0.1, 90.0, 84600.0, 1e-3, 1.0 / 3.0}) {
    check_round_trip(Duration{seconds});
    check_round_trip(Interval::every_seconds(seconds));
  }
  check_round_trip(Interval::every_steps(1000));
  check_round_trip(Span::steps(2000));
  check_round_trip(Span::percents(1.1));
  check_round_trip(Span::tokens(2'000'000'000));
  check_round_trip(std::vector<std::string>{"a, b", "]", "c"});
  check_round_trip(std::vector<double>{});
  check_round_trip(std::optional<double>{});
  check_round_trip(std::optional<std::string>{"null"});
  check_round_trip(Auto<int>{});
  check_round_trip(Auto<int>{3});
}

}  // namespace llmtrain::recipe
