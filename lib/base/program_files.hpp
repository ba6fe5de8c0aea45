#pragma once
/// What this process runs, by content.

#include <string>
#include <vector>

#include "lib/base/hash.hpp"

namespace llmtrain {

struct ProgramFile {
  /// "executable", "cuda plugin".
  std::string name;
  /// Of its content, read once.
  Hash128 hash;
};
/// The executable, then the plugins (load_plugin) in the order in which they were loaded.
std::vector<ProgramFile> program_files();

}  // namespace llmtrain
