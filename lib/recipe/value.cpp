#include "lib/recipe/value.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "lib/base/units.hpp"
#include "lib/recipe/scalar.hpp"
#include "lib/recipe/suggest.hpp"

namespace llmtrain::recipe {

namespace {

bool refuse(const Node& node, std::string problem, std::string hint, Problems& problems) {
  problems.push_back({node.where, std::move(problem), std::move(hint)});
  return false;
}

bool in_range(const Node& node, const Rule& rule, double value, Problems& problems) {
  const std::string violation = range_violation(rule, value);
  if (violation.empty()) return true;
  return refuse(node, fmt::format("{}, found {}", violation, describe(node)), {}, problems);
}

// The number a plain scalar spells, or a problem that says what was expected instead.
std::optional<Number> read_number(const Node& node, std::string_view expected, Problems& problems) {
  if (node.kind != Node::Kind::scalar) {
    wrong_type(node, expected, problems);
    return std::nullopt;
  }
  const NumberText parsed = parse_number(node.text);
  if (node.quoted) {
    wrong_type(node, expected, problems, parsed.number ? "remove the quotes" : "");
    return std::nullopt;
  }
  if (!parsed.number) {
    if (!parsed.problem.empty()) {
      refuse(node, describe(node) + " " + parsed.problem, parsed.hint, problems);
    } else {
      const auto count = parse_count(node.text);
      wrong_type(node, expected, problems,
                 count ? fmt::format("this key takes no unit: write {}", *count) : "");
    }
  }
  return parsed.number;
}

template <class I>
bool read_integer(const Node& node, const Rule& rule, I& out, Problems& problems) {
  const auto number = read_number(node, "an integer", problems);
  if (!number) return false;
  using Limits = std::numeric_limits<I>;
  // Magnitude of the lowest value, without overflow: 0 for unsigned types.
  const std::uint64_t lowest =
      std::is_signed_v<I> ? static_cast<std::uint64_t>(Limits::max()) + 1 : 0;
  const bool fits =
      number->magnitude <= (number->negative ? lowest : static_cast<std::uint64_t>(Limits::max()));
  if (!number->whole && std::abs(number->value) < 0x1p53) {
    return wrong_type(node, "an integer", problems);
  }
  if (!number->whole || !fits) {
    return refuse(node,
                  fmt::format("must be between {} and {}, found {}", Limits::min(), Limits::max(),
                              describe(node)),
                  {}, problems);
  }
  if (!in_range(node, rule, number->value, problems)) return false;
  const std::uint64_t bits = number->negative ? 0 - number->magnitude : number->magnitude;
  out = static_cast<I>(bits);
  return true;
}

bool has_leading_zero(std::string_view text) {
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

// A whole number with or without a unit that `parse` knows.
std::optional<std::uint64_t> quantity(std::string_view text,
                                      std::optional<std::uint64_t> (*parse)(std::string_view)) {
  if (const auto plain = parse_number(text).number) {
    if (!plain->whole || (plain->negative && plain->magnitude > 0)) return std::nullopt;
    return plain->magnitude;
  }
  return has_leading_zero(text) ? std::nullopt : parse(text);
}

// Seconds of "30min"; with `bare`, also of a number without unit.
std::optional<double> seconds_of(std::string_view text, bool bare) {
  if (const auto plain = parse_number(text).number) {
    if (!bare || plain->value < 0) return std::nullopt;
    return plain->value;
  }
  return has_leading_zero(text) ? std::nullopt : parse_duration(text);
}

template <class T>
bool expected_quantity(const Node& node, T, Problems& problems) {
  const TypeInfo info = leaf_type(T{});
  const std::string_view article = info.noun.starts_with('i') ? "an" : "a";  // an interval
  return wrong_type(node, fmt::format("{} {} like {}", article, info.noun, info.examples),
                    problems);
}

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  while (text.ends_with(' ')) text.remove_suffix(1);
  return true;
}

}  // namespace

bool wrong_type(const Node& node, std::string_view expected, Problems& problems, std::string hint) {
  return refuse(node, fmt::format("expected {}, found {}", expected, describe(node)),
                std::move(hint), problems);
}

bool is_plain(const Node& node, std::string_view word) {
  return node.kind == Node::Kind::scalar && !node.quoted && node.text == word;
}

std::optional<std::size_t> read_name(const Node& node, const Rule& rule, Problems& problems) {
  if (node.kind != Node::Kind::scalar) {
    wrong_type(node, "a name", problems,
               "allowed: " + fmt::format("{}", fmt::join(rule.allowed, ", ")));
    return std::nullopt;
  }
  const auto found = std::find(rule.allowed.begin(), rule.allowed.end(), node.text);
  if (found != rule.allowed.end()) {
    return static_cast<std::size_t>(found - rule.allowed.begin());
  }
  refuse(node, fmt::format("unknown value {}", describe(node)), suggestion(node.text, rule.allowed),
         problems);
  return std::nullopt;
}

bool check_length(const Node& node, const Rule& rule, Problems& problems) {
  const std::string violation = length_violation(rule, node.items.size(), "elements");
  return violation.empty() || refuse(node, violation, {}, problems);
}

bool read_leaf(const Node& node, const Rule&, bool& out, Problems& problems) {
  if (is_plain(node, "true") || is_plain(node, "false")) {
    out = node.text == "true";
    return true;
  }
  return wrong_type(node, "true or false", problems,
                    node.kind == Node::Kind::scalar ? "write true or false" : "");
}

bool read_leaf(const Node& node, const Rule& rule, int& out, Problems& problems) {
  return read_integer(node, rule, out, problems);
}
bool read_leaf(const Node& node, const Rule& rule, std::int64_t& out, Problems& problems) {
  return read_integer(node, rule, out, problems);
}
bool read_leaf(const Node& node, const Rule& rule, std::uint64_t& out, Problems& problems) {
  return read_integer(node, rule, out, problems);
}

bool read_leaf(const Node& node, const Rule& rule, double& out, Problems& problems) {
  const auto number = read_number(node, "a number", problems);
  if (!number || !in_range(node, rule, number->value, problems)) return false;
  out = number->value;
  return true;
}

bool read_leaf(const Node& node, const Rule& rule, std::string& out, Problems& problems) {
  if (node.kind != Node::Kind::scalar) return wrong_type(node, "text", problems);
  // A number is taken as the text it is (a path may be called 010); a bool is a mistake.
  if (is_plain(node, "true") || is_plain(node, "false")) {
    return wrong_type(node, "text", problems, "put it in quotes if it is text");
  }
  if (!rule.allowed.empty() && !read_name(node, rule, problems)) return false;
  const std::string violation = length_violation(rule, node.text.size(), "bytes");
  if (!violation.empty()) return refuse(node, violation, {}, problems);
  out = node.text;
  return true;
}

bool read_leaf(const Node& node, const Rule& rule, Count& out, Problems& problems) {
  const auto value =
      node.kind == Node::Kind::scalar ? quantity(node.text, parse_count) : std::nullopt;
  if (!value) return expected_quantity(node, Count{}, problems);
  out = *value;
  return in_range(node, rule, static_cast<double>(*value), problems);
}

bool read_leaf(const Node& node, const Rule& rule, Bytes& out, Problems& problems) {
  const auto value =
      node.kind == Node::Kind::scalar ? quantity(node.text, parse_bytes) : std::nullopt;
  if (!value) return expected_quantity(node, Bytes{}, problems);
  out = *value;
  return in_range(node, rule, static_cast<double>(*value), problems);
}

// A number up to 1 is a share: nobody means one byte.
bool read_leaf(const Node& node, const Rule&, SizeOrShare& out, Problems& problems) {
  if (node.kind != Node::Kind::scalar) return expected_quantity(node, SizeOrShare{}, problems);
  if (const auto number = parse_number(node.text).number; number && number->value <= 1) {
    out = SizeOrShare::of_all(number->value);
    return in_range(node, above(0) & at_most(1), number->value, problems);
  }
  const auto bytes = quantity(node.text, parse_bytes);
  if (!bytes) return expected_quantity(node, SizeOrShare{}, problems);
  out = SizeOrShare::size(*bytes);
  return true;
}

bool read_leaf(const Node& node, const Rule& rule, Duration& out, Problems& problems) {
  const auto value = node.kind == Node::Kind::scalar ? seconds_of(node.text, true) : std::nullopt;
  if (!value) return expected_quantity(node, Duration{}, problems);
  out = {*value};
  return in_range(node, rule, *value, problems);
}

bool read_leaf(const Node& node, const Rule&, Span& out, Problems& problems) {
  if (node.kind != Node::Kind::scalar) return expected_quantity(node, Span{}, problems);
  std::string_view text = node.text;
  if (remove_suffix(text, "%")) {
    const auto percent = parse_number(text).number;
    if (!percent) return expected_quantity(node, Span{}, problems);
    out = Span::percents(percent->value);
    return in_range(node, between(0, 100) & unit("%"), percent->value, problems);
  }
  const bool tokens = remove_suffix(text, "tokens") || remove_suffix(text, "tok");
  if (!tokens && !remove_suffix(text, "steps")) remove_suffix(text, "step");
  const auto count = quantity(text, parse_count);
  if (!count) return expected_quantity(node, Span{}, problems);
  out = tokens ? Span::tokens(*count) : Span::steps(*count);
  return true;
}

bool read_leaf(const Node& node, const Rule& rule, Interval& out, Problems& problems) {
  if (node.kind != Node::Kind::scalar) return expected_quantity(node, Interval{}, problems);
  std::string_view text = node.text;
  if (!remove_suffix(text, "steps")) remove_suffix(text, "step");
  if (const auto steps = quantity(text, parse_count)) {
    out = Interval::every_steps(*steps);
    return in_range(node, rule, static_cast<double>(*steps), problems);
  }
  const auto seconds = seconds_of(node.text, false);
  if (!seconds) return expected_quantity(node, Interval{}, problems);
  out = Interval::every_seconds(*seconds);
  return in_range(node, rule, *seconds, problems);
}

}  // namespace llmtrain::recipe
