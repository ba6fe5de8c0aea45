#pragma once
/// What this process is at, for messages about a run that stands still.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain::activity {

/// "training", "saving"
void enter(std::string_view phase);
void at_step(std::int64_t step);
/// "training, after step 41"; "starting" before anybody has said anything.
std::string text();

namespace detail {
extern std::atomic<std::uint64_t> g_ticks;
}
/// Something is going on; any thread says so at each kernel, exchange and file.
inline void tick() { detail::g_ticks.fetch_add(1, std::memory_order_relaxed); }
/// How often that was.
inline std::uint64_t ticks() { return detail::g_ticks.load(std::memory_order_relaxed); }

}  // namespace llmtrain::activity
