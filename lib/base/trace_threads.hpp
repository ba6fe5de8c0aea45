#pragma once
/// The threads of a trace (trace.hpp): what they are called, and what each was at.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/base/trace.hpp"

namespace llmtrain::trace {

/// Names the calling thread, for spans that end from here on.
void name_thread(std::string name);
/// Names, by Span::thread, of those that have one and whose spans were kept since start().
std::map<std::uint32_t, std::string> thread_names();

/// Calls `visit` for each stretch of time on one thread in which the same spans were open: these,
/// the outermost first and at least one, and nanoseconds. `spans` as stop() gives them.
void for_each_stretch(
    const std::vector<Span>& spans, std::uint32_t thread,
    const std::function<void(std::span<const Span* const> open, std::int64_t ns)>& visit);

}  // namespace llmtrain::trace
