#include "lib/train/local_checkpoints.hpp"

#include <algorithm>
#include <cstdint>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/strict_json.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// Without a last slash, so that it is the parent of what lies in it.
fs::path normal(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

// The same for a directory that is there and for one that will be.
fs::path resolved(const fs::path& path) { return normal(fs::weakly_canonical(fs::absolute(path))); }

// Tells the directory from its copies, which may have been moved to its path.
std::uint64_t inode_of(const fs::path& path) {
  struct stat facts {};
  require<StorageError>(::stat(path.c_str(), &facts) == 0, "{}: cannot be looked at",
                        path.string());
  return facts.st_ino;
}

bool is_in(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first ==
         directory.end();
}

}  // namespace

std::optional<fs::path> recorded_local_checkpoints(const fs::path& durable) {
  const fs::path record = durable / checkpoint::kLocalRecordName;
  if (!fs::exists(record)) return std::nullopt;
  constexpr std::uint64_t kMaxBytes = 1 << 16;
  try {
    const Json json = Json::parse(read_file(record, kMaxBytes),
                                  StrictJson{record.string(), "it is none of llmtrain's"});
    const fs::path directory = json.at("directory").get<std::string>();
    const bool same_place = json.at("of").get<std::string>() == resolved(durable).string();
    const bool same_directory = json.at("inode").get<std::uint64_t>() == inode_of(durable);
    if (same_place && same_directory) return directory;
    log::warning("{} is a copy, or was moved: the local checkpoints in {} are left to the original",
                 record.string(), directory.string());
  } catch (const Json::exception& error) {
    log::warning("{}: {}; where this run had local checkpoints is not known", record.string(),
                 error.what());
  } catch (const DataError& error) {
    log::warning("{}; where this run had local checkpoints is not known", error.what());
  }
  return std::nullopt;
}

void record_local_checkpoints(const fs::path& durable, const fs::path& directory) {
  Json json;
  json["directory"] = directory.string();
  json["of"] = resolved(durable).string();
  json["inode"] = inode_of(durable);
  write_file_atomic(durable / checkpoint::kLocalRecordName,
                    json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void forget_local_checkpoints(const fs::path& durable) {
  if (!fs::exists(durable / checkpoint::kLocalRecordName)) return;
  remove_tree(durable / checkpoint::kLocalRecordName);
  sync_directory(durable);
}

fs::path choose_local_checkpoints(const fs::path& durable, const fs::path& local) {
  const fs::path place = normal(local), run = durable.parent_path();
  require<RecipeError>(!is_in(resolved(local), resolved(run)),
                       "checkpoint.local.directory {} is in run.output_dir {}, where "
                       "checkpoint.interval saves: choose another disk, or leave it out",
                       local.string(), run.string());
  const std::optional<fs::path> before = recorded_local_checkpoints(durable);
  if (before && before->parent_path() != place) {
    log::warning(
        "checkpoint.local.directory has changed: the local checkpoints in {} are left there",
        before->string());
  } else if (before && !fs::is_directory(*before)) {
    log::warning("the local checkpoints in {} are gone", before->string());
  } else if (before) {
    return *before;
  }
  return place / checkpoint::make_nonce();
}

}  // namespace llmtrain::train
