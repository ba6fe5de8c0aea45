#include "lib/data/token_format.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace llmtrain::data {

namespace {

std::filesystem::path itself(const std::filesystem::path& path) { return path; }

struct IdTypeRow {
  std::size_t size;
  std::uint64_t largest;
};

template <class T>
constexpr IdTypeRow row_of() {
  return {sizeof(T), static_cast<std::uint64_t>(std::numeric_limits<T>::max())};
}

/// In the order of IdType.
constexpr std::array kIdTypes{row_of<std::uint8_t>(),  row_of<std::int8_t>(),
                              row_of<std::uint16_t>(), row_of<std::int16_t>(),
                              row_of<std::uint32_t>(), row_of<std::int32_t>(),
                              row_of<std::int64_t>()};

}  // namespace

std::size_t size_of(IdType type) { return kIdTypes.at(static_cast<std::size_t>(type)).size; }

std::uint64_t largest_id(IdType type) {
  return kIdTypes.at(static_cast<std::size_t>(type)).largest;
}

std::span<const TokenFormat> token_formats() {
  static constexpr std::array kRows{
      TokenFormat{"llmc", "token file of llm.c (.bin)", &recognises_llmc, &itself, &open_llmc},
      TokenFormat{"megatron", "indexed dataset of Megatron-LM (.bin with its .idx)",
                  &recognises_megatron, &megatron_main_file, &open_megatron}};
  return kRows;
}

const TokenFormat* find_token_format(std::string_view name) {
  const auto rows = token_formats();
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const TokenFormat& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

const TokenFormat* token_format_of(const std::filesystem::path& path) {
  const auto rows = token_formats();
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const TokenFormat& row) { return row.recognises(path); });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace llmtrain::data
