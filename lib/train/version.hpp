#pragma once
/// What this executable was built from.

#include <string_view>

namespace llmtrain::train {

extern const std::string_view kVersion;
/// Abbreviated hash, with "-dirty" if files differed; "unknown" outside a git checkout.
extern const std::string_view kCommit;
extern const std::string_view kCompiler;

}  // namespace llmtrain::train
