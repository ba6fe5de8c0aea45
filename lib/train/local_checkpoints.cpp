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
#include "lib/checkpoint/json_reader.hpp"
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

LocalRecord parse_local_record(std::string_view text, const std::string& source) {
  try {
    const Json json = Json::parse(text, StrictJson{source, "it is none of llmtrain's"});
    return {json.at("directory").get<std::string>(), json.at("of").get<std::string>(),
            integer_of<std::uint64_t>(json.at("inode"))};
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: {}", source, error.what()));
  }
}

std::string to_json(const LocalRecord& record) {
  Json json;
  json["directory"] = record.directory;
  json["of"] = record.of;
  json["inode"] = record.inode;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<fs::path> recorded_local_checkpoints(const fs::path& durable) {
  const fs::path path = durable / checkpoint::kLocalRecordName;
  if (!fs::exists(path)) return std::nullopt;
  constexpr std::uint64_t kMaxBytes = 1 << 16;
  try {
    const LocalRecord record = parse_local_record(read_file(path, kMaxBytes), path.string());
    // Below the place that a recipe names: whoever has written the record may say anything.
    require<DataError>(checkpoint::is_nonce(fs::path(record.directory).filename().string()),
                       "{}: '{}' is no directory of local checkpoints", path.string(),
                       checkpoint::printable(record.directory));
    const bool same_place = record.of == resolved(durable).string();
    if (same_place && record.inode == inode_of(durable)) return record.directory;
    log::warning("{} is a copy, or was moved: the local checkpoints in {} are left to the original",
                 path.string(), record.directory);
  } catch (const DataError& error) {
    log::warning("{}; where this run had local checkpoints is not known", error.what());
  }
  return std::nullopt;
}

std::optional<fs::path> recorded_local_checkpoints(const fs::path& durable, const fs::path& local) {
  std::optional<fs::path> recorded = recorded_local_checkpoints(durable);
  if (recorded && recorded->parent_path() != normal(local)) recorded.reset();
  return recorded;
}

void record_local_checkpoints(const fs::path& durable, const fs::path& directory) {
  write_file_atomic(durable / checkpoint::kLocalRecordName,
                    to_json({directory.string(), resolved(durable).string(), inode_of(durable)}));
}

void forget_local_checkpoints(const fs::path& durable) {
  if (!fs::exists(durable / checkpoint::kLocalRecordName)) return;
  remove_tree(durable / checkpoint::kLocalRecordName);
  sync_directory(durable);
}

void leave_recorded_checkpoints(const fs::path& durable) {
  if (const auto left = recorded_local_checkpoints(durable)) {
    log::warning("the run goes on without local checkpoints: those in {} are left there",
                 left->string());
  }
  forget_local_checkpoints(durable);
}

fs::path choose_local_checkpoints(const fs::path& durable, const fs::path& local) {
  return choose_local_checkpoints(durable, local, recorded_local_checkpoints(durable));
}

fs::path choose_local_checkpoints(const fs::path& durable, const fs::path& local,
                                  const std::optional<fs::path>& before) {
  const fs::path place = normal(local), run = durable.parent_path();
  require<RecipeError>(!is_in(resolved(local), resolved(run)),
                       "checkpoint.local.directory {} is in run.output_dir {}, where "
                       "checkpoint.interval saves: choose another disk, or leave it out",
                       local.string(), run.string());
  if (before && before->parent_path() != place) {
    log::warning(
        "checkpoint.local.directory has changed: the local checkpoints in {} are left there",
        before->string());
  } else if (before) {
    std::error_code error;
    const fs::file_type found = fs::status(*before, error).type();
    const bool is_hidden = found == fs::file_type::none;  // whoever opens it says why
    if (found == fs::file_type::directory || is_hidden) return *before;
    log::warning("the local checkpoints in {} are gone", before->string());
  }
  return place / checkpoint::make_nonce();
}

}  // namespace llmtrain::train
