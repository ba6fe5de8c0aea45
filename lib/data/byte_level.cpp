#include "lib/data/byte_level.hpp"

#include <charconv>

#include <fmt/format.h>

#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::uint32_t kFirstSubstitute = 0x100;
constexpr std::uint32_t kSubstitutes = 68;

constexpr std::array<std::uint32_t, 256> kCodePoints = [] {
  std::array<std::uint32_t, 256> table{};
  std::uint32_t next = kFirstSubstitute;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return table;
}();
static_assert(kCodePoints[255] == 255 && kCodePoints[0xAD] == kFirstSubstitute + kSubstitutes - 1);

constexpr std::array<std::int16_t, kFirstSubstitute + kSubstitutes> kBytes = [] {
  std::array<std::int16_t, kFirstSubstitute + kSubstitutes> table{};
  table.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[kCodePoints[byte]] = static_cast<std::int16_t>(byte);
  }
  return table;
}();

}  // namespace

const std::array<std::uint32_t, 256>& byte_level_code_points() { return kCodePoints; }

std::string to_byte_level(std::string_view bytes) {
  std::string spelling;
  spelling.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(kCodePoints[static_cast<unsigned char>(c)], spelling);
  return spelling;
}

std::optional<std::string> from_byte_level(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const std::size_t length = utf8_char_length(spelling);
    if (length == 0) return std::nullopt;
    const std::uint32_t code_point = decode_utf8(spelling);
    if (code_point >= kBytes.size() || kBytes[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[code_point]));
    spelling.remove_prefix(length);
  }
  return bytes;
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<unsigned char> byte_of_token(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') {
    return std::nullopt;
  }
  std::string_view digits = spelling.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // Rust's parser takes a sign
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return byte;
}

}  // namespace llmtrain::data
