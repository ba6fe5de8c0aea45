#pragma once
/// How each type of key is read from YAML, written back, and described.
///
/// Scalars are resolved here and not by the YAML library, by the declared type: only `true` and
/// `false` are bools, `010` and `.inf` are no numbers, `1e3` is an integer, `3_000` too.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/recipe/node.hpp"
#include "lib/recipe/quantity.hpp"
#include "lib/recipe/rule.hpp"

namespace llmtrain::recipe {

struct Problem {
  Where where;
  std::string text;
  std::string hint;
};
using Problems = std::vector<Problem>;

/// A key's type in words and for the JSON Schema.
struct TypeInfo {
  enum class Leaf { boolean, integer, number, text, quantity };
  Leaf leaf = Leaf::text;
  std::string noun;      ///< "integer", "count"
  std::string examples;  ///< of a quantity: "2000, 2M, 64Ki"
  std::string pattern;   ///< regular expression of a quantity's text form
  Rule rule;
  bool list = false, nullable = false;
  std::string_view automatic;  ///< the word that may take the value's place ("auto"), or empty

  /// "list of numbers", "integer or null", "count (2000, 2M, 64Ki)".
  std::string text() const;
};

// One overload per leaf type: false and at least one problem if the node is no such value.
bool read_leaf(const Node&, const Rule&, bool&, Problems&);
bool read_leaf(const Node&, const Rule&, int&, Problems&);
bool read_leaf(const Node&, const Rule&, std::int64_t&, Problems&);
bool read_leaf(const Node&, const Rule&, std::uint64_t&, Problems&);
bool read_leaf(const Node&, const Rule&, double&, Problems&);
bool read_leaf(const Node&, const Rule&, std::string&, Problems&);
bool read_leaf(const Node&, const Rule&, Count&, Problems&);
bool read_leaf(const Node&, const Rule&, Bytes&, Problems&);
bool read_leaf(const Node&, const Rule&, SizeOrShare&, Problems&);
bool read_leaf(const Node&, const Rule&, Duration&, Problems&);
bool read_leaf(const Node&, const Rule&, Span&, Problems&);
bool read_leaf(const Node&, const Rule&, Interval&, Problems&);

// YAML text that reads back as the same value.
std::string write_leaf(bool);
std::string write_leaf(int);
std::string write_leaf(std::int64_t);
std::string write_leaf(std::uint64_t);
std::string write_leaf(double);
std::string write_leaf(const std::string&);
std::string write_leaf(Count);
std::string write_leaf(Bytes);
std::string write_leaf(SizeOrShare);
std::string write_leaf(Duration);
std::string write_leaf(Span);
std::string write_leaf(Interval);

TypeInfo leaf_type(bool);
TypeInfo leaf_type(int);
TypeInfo leaf_type(std::int64_t);
TypeInfo leaf_type(std::uint64_t);
TypeInfo leaf_type(double);
TypeInfo leaf_type(const std::string&);
TypeInfo leaf_type(Count);
TypeInfo leaf_type(Bytes);
TypeInfo leaf_type(SizeOrShare);
TypeInfo leaf_type(Duration);
TypeInfo leaf_type(Span);
TypeInfo leaf_type(Interval);

/// Adds "expected X, found Y" for the node and returns false.
bool wrong_type(const Node& node, std::string_view expected, Problems& problems,
                std::string hint = {});
/// True if the node is plain `word` (null, auto).
bool is_plain(const Node& node, std::string_view word);
/// Index into rule.allowed, or a problem that lists them.
std::optional<std::size_t> read_name(const Node& node, const Rule& rule, Problems& problems);
bool check_length(const Node& node, const Rule& rule, Problems& problems);

/// Reads, writes and describes a T: leaves, enums, and the wrappers optional, Auto and vector.
template <class T>
struct Codec {
  using Rules = Rule;
  static bool read(const Node& node, const Rules& rule, T& out, Problems& problems) {
    return read_leaf(node, rule, out, problems);
  }
  static std::string write(const T& value, const Rules&) { return write_leaf(value); }
  static TypeInfo type(const Rules& rule) {
    TypeInfo info = leaf_type(T{});
    info.rule = rule;
    return info;
  }
};

template <class E>
requires std::is_enum_v<E>
struct Codec<E> {
  using Rules = Names<E>;
  static bool read(const Node& node, const Rules& names, E& out, Problems& problems) {
    const auto index = read_name(node, names, problems);
    if (index) out = names.rows[*index].second;
    return index.has_value();
  }
  static std::string write(E value, const Rules& names) {
    for (const auto& row : names.rows) {
      if (row.second == value) return write_leaf(row.first);
    }
    fail("an enum value of a recipe key has no name in its table");
  }
  static TypeInfo type(const Rules& names) {
    TypeInfo info = leaf_type(std::string{});
    info.noun = "name";
    info.rule = names;
    return info;
  }
};

template <class T>
struct Codec<std::optional<T>> {
  using Rules = typename Codec<T>::Rules;
  static bool read(const Node& node, const Rules& rule, std::optional<T>& out, Problems& problems) {
    if (node.kind == Node::Kind::null) {
      out.reset();
      return true;
    }
    return Codec<T>::read(node, rule, out.emplace(), problems);
  }
  static std::string write(const std::optional<T>& value, const Rules& rule) {
    return value ? Codec<T>::write(*value, rule) : "null";
  }
  static TypeInfo type(const Rules& rule) {
    TypeInfo info = Codec<T>::type(rule);
    info.nullable = true;
    return info;
  }
};

template <class T, class Word>
struct Codec<Auto<T, Word>> {
  using Rules = typename Codec<T>::Rules;
  static bool read(const Node& node, const Rules& rule, Auto<T, Word>& out, Problems& problems) {
    if (is_plain(node, Word::text)) {
      out.value.reset();
      return true;
    }
    return Codec<T>::read(node, rule, out.value.emplace(), problems);
  }
  static std::string write(const Auto<T, Word>& value, const Rules& rule) {
    return value.is_auto() ? std::string(Word::text) : Codec<T>::write(*value.value, rule);
  }
  static TypeInfo type(const Rules& rule) {
    TypeInfo info = Codec<T>::type(rule);
    info.automatic = Word::text;
    return info;
  }
};

template <class T>
struct Codec<std::vector<T>> {
  using Rules = typename Codec<T>::Rules;
  static bool read(const Node& node, const Rules& rule, std::vector<T>& out, Problems& problems) {
    if (node.kind != Node::Kind::sequence) {
      return wrong_type(node, type(rule).text(), problems, "write [a, b]");
    }
    bool good = check_length(node, rule, problems);
    // The length belongs to the list, everything else to its elements.
    Rules element_rule = rule;
    element_rule.min_length.reset();
    element_rule.max_length.reset();
    out.clear();
    for (const Node& item : node.items) {
      T element{};
      good = Codec<T>::read(item, element_rule, element, problems) && good;
      out.push_back(std::move(element));
    }
    return good;
  }
  static std::string write(const std::vector<T>& values, const Rules& rule) {
    std::string text = "[";
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text += ", ";
      text += Codec<T>::write(values[i], rule);
    }
    text += ']';
    return text;
  }
  static TypeInfo type(const Rules& rule) {
    TypeInfo info = Codec<T>::type(rule);
    info.list = true;
    return info;
  }
};

}  // namespace llmtrain::recipe
