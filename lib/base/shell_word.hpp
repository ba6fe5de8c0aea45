#pragma once
/// What a POSIX shell reads as one word.

#include <string>

namespace llmtrain {

/// The word, in quotes where it needs them: the shell expands nothing in it.
std::string shell_word(const std::string& word);

}  // namespace llmtrain
