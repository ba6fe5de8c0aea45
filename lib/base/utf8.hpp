#pragma once
/// UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

/// Length in bytes of the well-formed character that `text` starts with; 0 if it starts with none.
std::size_t utf8_char_length(std::string_view text);

/// Number of leading bytes of `text` that are well-formed as a whole.
std::size_t valid_utf8_prefix(std::string_view text);

/// Number of leading bytes of `text` none of which belongs to a well-formed character.
std::size_t invalid_utf8_prefix(std::string_view text);

/// Appends the UTF-8 form of a code point that is not a surrogate.
void append_utf8(std::uint32_t code_point, std::string& out);

/// Code point of the well-formed character that `text` starts with.
std::uint32_t decode_utf8(std::string_view text);

/// For a terminal: control characters, U+0080 to U+009F among them, and bytes of no well-formed
/// character as "\x1b", everything else as it is.
std::string escape_controls(std::string_view text);

/// Replaces each byte that is part of no well-formed character by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace llmtrain
