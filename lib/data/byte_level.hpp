#pragma once
/// The byte <-> character table of GPT-2's byte-level BPE, in which tokenizer.json spells tokens:
/// '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves, the other 68 bytes, in
/// ascending order, for U+0100 + n.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain::data {

/// Code point that stands for each byte.
const std::array<std::uint32_t, 256>& byte_level_code_points();

/// Spells raw bytes in the table's characters (UTF-8).
std::string to_byte_level(std::string_view bytes);

/// The bytes that a spelling stands for; empty if a character is not in the table.
std::optional<std::string> from_byte_level(std::string_view spelling);

/// SentencePiece's spelling of a byte that is no character of the vocabulary: "<0x0A>".
std::string byte_token(unsigned char byte);

/// The byte that such a spelling stands for, as Hugging Face's decoder reads it; empty for others.
std::optional<unsigned char> byte_of_token(std::string_view spelling);

}  // namespace llmtrain::data
