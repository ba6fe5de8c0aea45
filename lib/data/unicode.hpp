#pragma once
/// Unicode transformations of text, with the results of Hugging Face's tokenizers.

#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain::data {

/// The normalization forms of Unicode Standard Annex 15.
enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

// Each appends the transformed `text`, which is valid UTF-8, to `out`.

void append_normalized(UnicodeForm form, std::string_view text, std::string& out);
/// Lower case of each character for itself (no final sigma).
void append_lower_case(std::string_view text, std::string& out);
/// Everything but combining marks.
void append_without_marks(std::string_view text, std::string& out);

/// White_Space of Unicode.
bool is_white_space(std::uint32_t code_point);
/// Bytes of white space that a text begins and ends with.
std::size_t leading_white_space(std::string_view text);
std::size_t trailing_white_space(std::string_view text);

/// The well-formed character that a text ends with; empty if it ends with none.
std::string_view last_character(std::string_view text);

}  // namespace llmtrain::data
