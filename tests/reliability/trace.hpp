#pragma once
/// Calls that changed files, as inject/io_faults.cpp has recorded them, and what a loss of power
/// may have left of them.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace llmtrain::test {

struct IoCall {
  std::string call;
  std::string path;
  std::string second;  // of rename and link: the new name
  std::string data;    // of write
};

std::vector<IoCall> read_trace(const std::filesystem::path& file);

/// A directory tree, as a loss of power has left it.
class DiskState {
 public:
  struct Node {
    bool is_directory = false;
    std::shared_ptr<const std::string> data = {};  // of a file
    std::map<std::string, int> names = {};         // of a directory: nodes
  };
  explicit DiskState(std::vector<Node> nodes) : nodes_(std::move(nodes)) {}

  /// Alike for trees of the same names and contents.
  std::string digest() const { return digest(0); }
  /// Makes `target`, which must not exist.
  void write(const std::filesystem::path& target) const { write(0, target); }

 private:
  std::string digest(int node) const;
  void write(int node, const std::filesystem::path& target) const;

  std::vector<Node> nodes_;  // 0 is the root
};

/// A directory tree of which a loss of power keeps only what was made durable, and any part of the
/// rest: of a file's writes since its last fsync each may be there, not, or with its first bytes
/// only; of the names in a directory that changed since its last fsync each change may be there or
/// not, whatever order they had. More than one file system does, less than none may do.
class PowerLoss {
 public:
  /// `root` and everything in it, durable.
  explicit PowerLoss(const std::filesystem::path& root);

  /// After the first `calls` of the trace, with what was not durable then decided by `seed`; 0
  /// keeps all of it, 1 nothing.
  DiskState state(const std::vector<IoCall>& trace, std::size_t calls, std::uint64_t seed) const;

 private:
  std::filesystem::path root_;
  std::vector<DiskState::Node> nodes_;  // 0 is the root
};

}  // namespace llmtrain::test
