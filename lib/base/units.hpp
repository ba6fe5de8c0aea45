#pragma once
/// Human-readable quantities, both ways.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain {

/// "1.50 GiB", "384 B".
std::string format_bytes(std::uint64_t bytes);
/// "124.4M", "1.02k", "17".
std::string format_count(double count);
/// "2h 03m", "45.2 s", "13.1 ms".
std::string format_duration(double seconds);

/// "64", "1k", "2M", "20B", "1.5T" (powers of 1000), "4Ki", "2Mi", "1Gi" (powers of 1024); digits
/// may be grouped by '_'. Empty if the text is not such a number, is not whole, or overflows.
std::optional<std::uint64_t> parse_count(std::string_view text);
/// As parse_count with an optional trailing "B": "16GiB", "512MB", "4096".
std::optional<std::uint64_t> parse_bytes(std::string_view text);
/// "90", "90s", "30min", "23h30m", "2d" in seconds.
std::optional<double> parse_duration(std::string_view text);

}  // namespace llmtrain
