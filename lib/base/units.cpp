#include "lib/base/units.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace llmtrain {

namespace {

struct Number {
  double value;
  std::string_view suffix;
};

// Reads a leading decimal number with '_' digit groups.
std::optional<Number> leading_number(std::string_view text) {
  std::string digits;
  std::size_t i = 0;
  while (i < text.size() && (std::isdigit(static_cast<unsigned char>(text[i])) || text[i] == '.' ||
                             (text[i] == '_' && i > 0))) {
    if (text[i] != '_') digits += text[i];
    ++i;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  while (i < text.size() && text[i] == ' ') ++i;
  return Number{value, text.substr(i)};
}

template <std::size_t n>
std::optional<double> factor_of(std::string_view suffix,
                                const std::array<std::pair<std::string_view, double>, n>& table) {
  for (const auto& [name, factor] : table) {
    if (name == suffix) return factor;
  }
  return std::nullopt;
}

constexpr std::array<std::pair<std::string_view, double>, 11> kCountFactors{{{"", 1.0},
                                                                             {"k", 1e3},
                                                                             {"K", 1e3},
                                                                             {"M", 1e6},
                                                                             {"B", 1e9},
                                                                             {"G", 1e9},
                                                                             {"T", 1e12},
                                                                             {"Ki", 0x1p10},
                                                                             {"Mi", 0x1p20},
                                                                             {"Gi", 0x1p30},
                                                                             {"Ti", 0x1p40}}};
constexpr std::array<std::pair<std::string_view, double>, 14> kByteFactors{{{"", 1.0},
                                                                            {"B", 1.0},
                                                                            {"kB", 1e3},
                                                                            {"MB", 1e6},
                                                                            {"GB", 1e9},
                                                                            {"TB", 1e12},
                                                                            {"Ki", 0x1p10},
                                                                            {"Mi", 0x1p20},
                                                                            {"Gi", 0x1p30},
                                                                            {"Ti", 0x1p40},
                                                                            {"KiB", 0x1p10},
                                                                            {"MiB", 0x1p20},
                                                                            {"GiB", 0x1p30},
                                                                            {"TiB", 0x1p40}}};
constexpr std::array<std::pair<std::string_view, double>, 6> kTimeFactors{
    {{"s", 1.0}, {"ms", 1e-3}, {"m", 60.0}, {"min", 60.0}, {"h", 3600.0}, {"d", 86400.0}}};

std::optional<std::uint64_t> whole(double value) {
  if (!(value >= 0) || value >= 0x1p63 || value != std::floor(value)) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array<const char*, 5> kUnits{"", "k", "M", "B", "T"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000.0 && unit + 1 < kUnits.size()) {
    count /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.4g}", count) : fmt::format("{:.4g}{}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120.0) return fmt::format("{:.1f} s", seconds);
  const auto minutes = static_cast<std::int64_t>(seconds / 60.0);
  if (minutes < 60) {
    return fmt::format("{}m {:02}s", minutes, static_cast<std::int64_t>(seconds) % 60);
  }
  if (minutes < 60 * 48) return fmt::format("{}h {:02}m", minutes / 60, minutes % 60);
  return fmt::format("{}d {:02}h", minutes / 1440, minutes / 60 % 24);
}

std::optional<std::uint64_t> parse_count(std::string_view text) {
  const auto number = leading_number(text);
  if (!number) return std::nullopt;
  const auto factor = factor_of(number->suffix, kCountFactors);
  return factor ? whole(number->value * *factor) : std::nullopt;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const auto number = leading_number(text);
  if (!number) return std::nullopt;
  const auto factor = factor_of(number->suffix, kByteFactors);
  return factor ? whole(number->value * *factor) : std::nullopt;
}

std::optional<double> parse_duration(std::string_view text) {
  double total = 0;
  bool first = true;
  while (!text.empty()) {
    const auto number = leading_number(text);
    if (!number) return std::nullopt;
    std::size_t letters = 0;
    while (letters < number->suffix.size() &&
           std::isalpha(static_cast<unsigned char>(number->suffix[letters]))) {
      ++letters;
    }
    const std::string_view unit = number->suffix.substr(0, letters);
    if (unit.empty()) {
      if (!first || !number->suffix.empty()) return std::nullopt;
      return number->value;
    }
    const auto factor = factor_of(unit, kTimeFactors);
    if (!factor) return std::nullopt;
    total += number->value * *factor;
    text = number->suffix.substr(letters);
    first = false;
  }
  return first ? std::nullopt : std::optional<double>(total);
}

}  // namespace llmtrain
