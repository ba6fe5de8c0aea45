#pragma once
/// Files of lines of which some are none: a loss of power has left a part of them, or somebody has
/// damaged them. They stop no start: what is none goes into a file beside, and nothing is lost.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string_view>

namespace llmtrain::train {

/// What `path` has from its first line on that is none goes into `path`.torn, behind what is there;
/// a warning says so behind `problem`, which names file and line. Lines up to the last save are on
/// the disk before it: only what the run has to make again can be torn.
void put_torn_part_beside(const std::filesystem::path& path, std::string_view torn,
                          std::string_view problem);

/// Whether a whole line, the n-th of its file, stays there; DataError, naming both, if it is none.
using JudgeLine = std::function<bool(std::string_view line, std::size_t number)>;

/// Leaves the lines that stay in the file at `path`, if there is one. Those that are none go into
/// `path`.torn, and one warning names the first of them. A last line without an end is dropped.
void keep_lines(const std::filesystem::path& path, const JudgeLine& stays);

}  // namespace llmtrain::train
