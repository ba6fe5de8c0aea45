#pragma once
/// How many spans are kept: for those who begin to look (lib/base/trace.hpp).

#include <cstddef>
#include <cstdint>

namespace llmtrain::trace {

/// About 200 MB.
inline constexpr std::size_t kMaxSpans = 1 << 21;

/// As start(), which keeps the first kMaxSpans that end.
void start(std::size_t max_spans);
/// Spans that were one too many since then.
std::uint64_t dropped();

}  // namespace llmtrain::trace
