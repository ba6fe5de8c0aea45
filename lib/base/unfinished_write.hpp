#pragma once
/// What a killed process leaves of write_file_atomic() (lib/base/file.hpp).

#include <string_view>

namespace llmtrain {

/// Whether a file has the name of a temporary file of that function's.
bool is_unfinished_write(std::string_view file_name);

}  // namespace llmtrain
