#pragma once
/// UTF-8 (RFC 3629), for text that a model or a user produced.

#include <string>
#include <string_view>

namespace llmtrain {

/// Replaces each byte that is part of no well-formed sequence by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace llmtrain
