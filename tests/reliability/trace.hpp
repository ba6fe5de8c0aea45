#pragma once
/// Calls that changed files, as inject/io_faults.cpp has recorded them, and what a loss of power
/// may have left of them.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace llmtrain::test {

struct IoCall {
  std::string call;
  std::string path;
  std::string second;  // of rename and link: the new name
  std::string data;    // of write
};

std::vector<IoCall> read_trace(const std::filesystem::path& file);

/// A directory tree of which a loss of power keeps only what was made durable, and any part of the
/// rest: of a file's writes since its last fsync each may be there, not, or with its first bytes
/// only; of the names in a directory that changed since its last fsync each change may be there or
/// not, whatever order they had. More than one file system does, less than none may do.
class PowerLoss {
 public:
  /// `root` and everything in it, durable.
  explicit PowerLoss(const std::filesystem::path& root);

  /// The first `calls` of the trace, with what was not durable then decided by `seed`; 0 keeps all
  /// of it, 1 nothing. Written into `target`, which must not exist.
  void write_state(const std::vector<IoCall>& trace, std::size_t calls, std::uint64_t seed,
                   const std::filesystem::path& target) const;

 private:
  struct Node {
    bool is_directory = false;
    std::string data;
    std::map<std::string, int> names;
  };
  void write_node(const std::vector<Node>& nodes, int node,
                  const std::filesystem::path& target) const;

  std::filesystem::path root_;
  std::vector<Node> nodes_;  // 0 is the root
};

}  // namespace llmtrain::test
