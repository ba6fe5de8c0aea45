#pragma once
/// Directory operations whose failure is a StorageError with the path and the system's reason.

#include <filesystem>

namespace llmtrain {

/// Whether a directory has an entry of this name, even one that leads nowhere.
bool has_entry(const std::filesystem::path& path);

/// Creates one directory that must not exist yet; its parent must.
void create_new_directory(const std::filesystem::path& path);

/// Creates the directory and its missing parents, each durably; fine if it exists.
void create_directories_durably(const std::filesystem::path& path);

/// Where a program keeps what it can make again: "llmtrain" in $XDG_CACHE_HOME, or else in
/// ~/.cache, or else in /tmp. Not created.
std::filesystem::path user_cache_directory();

/// rename(2). Durable only after sync_directory of the parent.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes a file, or a directory with everything in it; links are removed, not followed. A missing
/// path is fine.
void remove_tree(const std::filesystem::path& path);

}  // namespace llmtrain
