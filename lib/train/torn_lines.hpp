#pragma once
/// Files of lines of which a loss of power has left a part.

#include <filesystem>
#include <string_view>

namespace llmtrain::train {

/// What `path` has from its first line on that is none goes into `path`.torn, behind what is there,
/// so that nothing is lost; and a warning says so. Lines up to the last save are on the disk before
/// it: only what the run has to make again can be torn.
void put_torn_part_beside(const std::filesystem::path& path, std::string_view torn);

}  // namespace llmtrain::train
