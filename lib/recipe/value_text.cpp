// How values are written and what their types are called.

#include <algorithm>

#include <fmt/format.h>

#include "lib/recipe/scalar.hpp"
#include "lib/recipe/value.hpp"

namespace llmtrain::recipe {

namespace {

// Shortest decimal without exponent that reads back as the same double (units do not mix with 'e').
std::string fixed_text(double value) {
  std::string text = fmt::format("{:.25f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// Characters that mean nothing to YAML anywhere in a plain scalar, also within [ ].
bool is_plain_text(std::string_view text) {
  const auto harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-' || c == '+';
  };
  return std::all_of(text.begin(), text.end(), harmless) && text[0] != '-' && text != "..." &&
         !needs_quotes(text);
}

constexpr const char* kCountPattern = "[0-9][0-9_]*(\\.[0-9]+)? ?(k|K|M|B|G|T|Ki|Mi|Gi|Ti)?";
constexpr const char* kDurationPattern = "([0-9]+(\\.[0-9]+)? ?(s|ms|m|min|h|d))+";

TypeInfo leaf_info(TypeInfo::Leaf leaf, std::string noun, std::string examples = {},
                   std::string pattern = {}) {
  TypeInfo info;
  info.leaf = leaf;
  info.noun = std::move(noun);
  info.examples = std::move(examples);
  info.pattern = pattern.empty() ? pattern : "^(" + pattern + ")$";
  return info;
}

}  // namespace

std::string TypeInfo::text() const {
  std::string text = list ? "list of " + noun + "s" : noun;
  if (!examples.empty()) text += " (" + examples + ")";
  if (nullable) text += " or null";
  if (!automatic.empty()) text += fmt::format(" or {}", automatic);
  return text;
}

std::string write_leaf(bool value) { return value ? "true" : "false"; }
std::string write_leaf(int value) { return std::to_string(value); }
std::string write_leaf(std::int64_t value) { return std::to_string(value); }
std::string write_leaf(std::uint64_t value) { return std::to_string(value); }

std::string write_leaf(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string write_leaf(const std::string& value) {
  if (is_plain_text(value)) return value;
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + '"';
}

std::string write_leaf(Count value) { return std::to_string(value.value); }
std::string write_leaf(Bytes value) { return std::to_string(value.value); }
std::string write_leaf(SizeOrShare value) {
  return value.bytes ? std::to_string(*value.bytes) : write_leaf(value.share);
}
std::string write_leaf(Duration value) { return fixed_text(value.seconds) + "s"; }

std::string write_leaf(Span value) {
  if (value.unit == Span::Unit::percent) return fixed_text(value.percent) + "%";
  return std::to_string(value.count) + (value.unit == Span::Unit::tokens ? " tok" : "");
}

std::string write_leaf(Interval value) {
  return value.unit == Interval::Unit::steps ? std::to_string(value.count)
                                             : fixed_text(value.seconds) + "s";
}

TypeInfo leaf_type(bool) { return leaf_info(TypeInfo::Leaf::boolean, "bool"); }
TypeInfo leaf_type(int) { return leaf_info(TypeInfo::Leaf::integer, "integer"); }
TypeInfo leaf_type(std::int64_t) { return leaf_info(TypeInfo::Leaf::integer, "integer"); }
TypeInfo leaf_type(std::uint64_t) {
  TypeInfo info = leaf_info(TypeInfo::Leaf::integer, "integer");
  return info;
}
TypeInfo leaf_type(double) { return leaf_info(TypeInfo::Leaf::number, "number"); }
TypeInfo leaf_type(const std::string&) { return leaf_info(TypeInfo::Leaf::text, "text"); }
TypeInfo leaf_type(Count) {
  return leaf_info(TypeInfo::Leaf::quantity, "count", "2000, 2M, 64Ki", kCountPattern);
}
TypeInfo leaf_type(Bytes) {
  return leaf_info(TypeInfo::Leaf::quantity, "size", "4096, 512MB, 16GiB",
                   std::string(kCountPattern) + "(B)?");
}
TypeInfo leaf_type(SizeOrShare) {
  return leaf_info(TypeInfo::Leaf::quantity, "size or share", "8GiB, 0.6",
                   std::string(kCountPattern) + "(B)?");
}
TypeInfo leaf_type(Duration) {
  return leaf_info(TypeInfo::Leaf::quantity, "time", "90s, 30min, 23h30m", kDurationPattern);
}
TypeInfo leaf_type(Span) {
  return leaf_info(TypeInfo::Leaf::quantity, "span", "2000 steps, 1%, 2B tok",
                   fmt::format("[0-9.]+ ?%|{} ?(step|steps|tok|tokens)?", kCountPattern));
}
TypeInfo leaf_type(Interval) {
  return leaf_info(TypeInfo::Leaf::quantity, "interval", "1000 steps, 30min",
                   fmt::format("{} ?(step|steps)?|{}", kCountPattern, kDurationPattern));
}

}  // namespace llmtrain::recipe
