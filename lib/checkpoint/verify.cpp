#include "lib/checkpoint/verify.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "lib/base/file.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/piece_reader.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/base/trace.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/safetensors.hpp"
#include "lib/checkpoint/stored_read.hpp"

namespace llmtrain::checkpoint {

namespace {

// What format_problems() tells of those that are unread.
constexpr const char *kUnread = "unread", *kUnreadForRights = "no right";

/// What the manifest expects to find in one shard.
struct ExpectedEntry {
  const std::string* tensor;
  const TensorRecord* record;
  const StoredBox* stored;
};
using ExpectedEntries = std::multimap<std::string, ExpectedEntry>;

/// Those of `handover`, if any, take each piece while it is hashed.
Hash128 hash_of(const File& file, std::uint64_t begin, std::uint64_t end, const CheckPart& part,
                Handover* handover) {
  const std::string name = file.path().filename().string();
  Hasher128 hasher;
  std::uint64_t at = begin;
  auto last = WritePace::Clock::now();
  read_in_pieces(file, begin, end, [&](std::span<const std::byte> piece) {
    const Handover::Offer offer(handover, name, at, piece);
    at += piece.size();
    hasher.update(piece);
    if (part.heeds_signals) stop_if_asked("checking a checkpoint");
    if (part.stop.stop_requested()) throw GivenUp("the check of a checkpoint was given up");
    if (part.pace != nullptr) part.pace->rest(WritePace::Clock::now() - last, part.stop);
    last = WritePace::Clock::now();
  });
  return hasher.digest();
}

/// The whole file has another hash: tells which tensors of it have.
void find_damage(const File& raw, const SafetensorsFile& shard, const std::string& file,
                 const ExpectedEntries& expected, const CheckPart& part,
                 std::vector<Problem>& problems) {
  constexpr std::string_view kReason =
      "does not match the hash in the manifest (damaged or swapped)";
  const std::size_t before = problems.size();
  for (const auto& [name, want] : expected) {
    const SafetensorsEntry* const entry = shard.find(name);
    if (entry == nullptr || !want.stored->xxh3_128) continue;
    const Hash128 found = hash_of(raw, entry->offset, entry->offset + entry->bytes, part, nullptr);
    if (found != *want.stored->xxh3_128) {
      problems.push_back({file, *want.tensor, std::string(kReason)});
    }
  }
  if (problems.size() == before) problems.push_back({file, "", std::string(kReason)});
}

void check_entries(const SafetensorsFile& shard, const std::string& file,
                   const ExpectedEntries& expected, std::vector<Problem>& problems) {
  for (auto at = expected.begin(); at != expected.end(); ++at) {
    const auto& [name, want] = *at;
    const SafetensorsEntry* const entry = shard.find(name);
    if (entry == nullptr) {
      problems.push_back({file, *want.tensor, fmt::format("'{}' is not in the file", name)});
      continue;
    }
    if (entry->type != stored_type(want.record->dtype) || entry->shape != want.stored->box.shape) {
      problems.push_back(
          {file, *want.tensor,
           fmt::format("the file has {} {}, the manifest {} {}", to_string(entry->type),
                       to_string(entry->shape), to_string(stored_type(want.record->dtype)),
                       to_string(want.stored->box.shape))});
    }
    if (at != expected.begin() && std::prev(at)->first == name) {
      problems.push_back({file, *want.tensor, fmt::format("two boxes share '{}'", name)});
    }
  }
  for (const SafetensorsEntry& entry : shard.entries()) {
    if (!expected.contains(entry.name)) {
      problems.push_back({file, entry.name, "is not in the manifest"});
    }
  }
}

std::string wrong_length(std::uint64_t bytes, const FileRecord& record) {
  return fmt::format("has {} bytes, the manifest says {}", bytes, record.bytes);
}

void check_file(const std::filesystem::path& path, const FileRecord& record, VerifyLevel level,
                const ExpectedEntries& expected, const CheckPart& part,
                std::vector<Problem>& problems) {
  const std::string file = path.filename().string();
  const trace::Scope span(trace::Kind::io, [&] {
    return (level == VerifyLevel::hash_on_disk ? "read back " : "check ") + file;
  });
  File raw = read_stored([&] { return File::open_read_nofollow(path); });
  raw.expect_straight_reading();
  if (level == VerifyLevel::hash_on_disk) raw.bypass_cache();
  if (raw.size() != record.bytes) {
    problems.push_back({file, "", wrong_length(raw.size(), record)});
    return;
  }
  const SafetensorsFile shard = read_stored([&] { return SafetensorsFile::open_nofollow(path); });
  check_entries(shard, file, expected, problems);
  if (level == VerifyLevel::header) return;
  if (hash_of(raw, 0, record.bytes, part, part.handover) != record.xxh3_128) {
    find_damage(raw, shard, file, expected, part, problems);
  }
}

/// What reads for a part of a check is patient with storage, not with a signal.
auto heeding_signals(const CheckPart& part) {
  return [&part] {
    if (part.heeds_signals) stop_if_asked("checking a checkpoint");
  };
}

/// As read_manifest(), of storage that does not fail.
Manifest read_manifest_once(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestName;
  const trace::Scope span(trace::Kind::io, [&] { return "load " + path.filename().string(); });
  const File file = read_stored([&] { return File::open_read_nofollow(path); });
  const std::uint64_t bytes = file.size();
  require<CheckpointError>(bytes <= kMaxManifestBytes, "{}: {} bytes, at most {} are accepted",
                           path.string(), bytes, kMaxManifestBytes);
  std::string text(bytes, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(text, path.string());
}

/// What ended the reading of a whole file, without the path that the message begins with.
Problem problem_of(const std::filesystem::path& directory, const std::string& file,
                   const Error& error) {
  std::string reason = error.what();
  const std::string path = (directory / file).string() + ": ";
  if (reason.starts_with(path)) reason.erase(0, path.size());
  return {.file = file,
          .tensor = "",
          .reason = std::move(reason),
          .is_unread = error.exit_code() == ExitCode::storage,
          .has_no_right = dynamic_cast<const NotReadable*>(&error) != nullptr};
}

}  // namespace

std::string to_string(const Problem& problem) {
  if (problem.tensor.empty()) return fmt::format("{}: {}", problem.file, problem.reason);
  return fmt::format("{}: tensor '{}': {}", problem.file, printable(problem.tensor),
                     problem.reason);
}

std::string to_string(std::span<const Problem> problems) {
  if (problems.empty()) return "";
  std::string text = to_string(problems.front());
  if (problems.size() > 1) text += fmt::format(" (and {} more)", problems.size() - 1);
  return text;
}

void require_rights(const std::filesystem::path& directory, std::span<const Problem> problems) {
  const auto closed = std::ranges::find_if(problems, &Problem::has_no_right);
  if (closed == problems.end()) return;
  fail<StorageError>(
      "{}/{}. The checkpoint may be whole: nothing is read in its place, and nothing is changed",
      directory.string(), to_string(*closed));
}

std::vector<std::string> files_of(const Manifest& manifest, const CheckPart& part) {
  // What a rank has written lies side by side, so that it mostly checks what it goes on with.
  std::vector<std::string> files;
  std::uint64_t number = 0;
  for (const auto& [name, record] : manifest.files) {
    const std::uint64_t checker =
        number++ * static_cast<std::uint64_t>(part.checkers) / manifest.files.size();
    if (checker == static_cast<std::uint64_t>(part.checker)) files.push_back(name);
  }
  return files;
}

Manifest read_manifest(const std::filesystem::path& directory) {
  return read_patiently([&] { return read_manifest_once(directory); });
}

namespace {

void check_step(const Manifest& manifest, std::uint64_t step, std::vector<Problem>& problems) {
  if (manifest.step == step) return;
  problems.push_back({std::string(kManifestName), "",
                      fmt::format("is of step {}, the directory of step {}", manifest.step, step)});
}

}  // namespace

std::vector<Problem> verify_checkpoint(const std::filesystem::path& directory, std::uint64_t step,
                                       VerifyLevel level, const CheckPart& part) {
  std::vector<Problem> problems;
  const std::string manifest_name(kManifestName);
  Manifest manifest;
  try {
    manifest = read_patiently([&] { return read_manifest_once(directory); }, heeding_signals(part));
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    return {problem_of(directory, manifest_name, error)};
  }
  check_step(manifest, step, problems);
  std::map<std::string, ExpectedEntries> expected;
  for (const auto& [name, record] : manifest.tensors) {
    for (const StoredBox& stored : record.boxes) {
      expected[stored.file].emplace(stored.name_in_file, ExpectedEntry{&name, &record, &stored});
    }
  }
  for (const std::string& file : files_of(manifest, part)) {
    if (part.heeds_signals) stop_if_asked("checking a checkpoint");
    try {
      const auto found = read_patiently(
          [&] {
            std::vector<Problem> of_file;
            check_file(directory / file, manifest.files.at(file), level, expected[file], part,
                       of_file);
            return of_file;
          },
          heeding_signals(part));
      problems.insert(problems.end(), found.begin(), found.end());
    } catch (const GivenUp&) {
      throw;
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      problems.push_back(problem_of(directory, file, error));
    }
  }
  return problems;
}

std::vector<Problem> check_lengths(const std::filesystem::path& directory, std::uint64_t step,
                                   const Manifest& manifest) {
  namespace fs = std::filesystem;
  std::vector<Problem> problems;
  check_step(manifest, step, problems);
  for (const auto& [name, record] : manifest.files) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(directory / name, error).type();
    if (type == fs::file_type::not_found) {
      problems.push_back({name, "", "is missing"});
    } else if (!error && type != fs::file_type::regular) {
      problems.push_back({name, "", "is not a regular file"});
    } else {
      const std::uint64_t bytes = error ? 0 : fs::file_size(directory / name, error);
      if (error) {
        problems.push_back({name, "", "cannot be looked at: " + error.message(), true});
      } else if (bytes != record.bytes) {
        problems.push_back({name, "", wrong_length(bytes, record)});
      }
    }
  }
  return problems;
}

// Each field ends with a NUL, which no name and no message has.
std::string format_problems(std::span<const Problem> problems) {
  std::string text;
  for (const Problem& problem : problems) {
    const std::string unread = problem.has_no_right ? kUnreadForRights
                               : problem.is_unread  ? kUnread
                                                    : "";
    for (const std::string& field : {problem.file, problem.tensor, problem.reason, unread}) {
      text.append(field.c_str(), field.size() + 1);
    }
  }
  return text;
}

std::vector<Problem> join_problems(std::span<const std::string> texts) {
  std::vector<Problem> problems;
  using Fields = std::array<std::string, 4>;
  std::set<Fields> known;
  for (std::size_t checker = 0; checker < texts.size(); ++checker) {
    std::string_view rest = texts[checker];
    while (!rest.empty()) {
      Fields fields;
      for (std::string& field : fields) {
        const std::size_t end = rest.find('\0');
        require(end != std::string_view::npos, "a checker's account cannot be read");
        field = rest.substr(0, end);
        rest.remove_prefix(end + 1);
      }
      if (!known.insert(fields).second) continue;
      problems.push_back(
          {fields[0], fields[1], fields[2], !fields[3].empty(), fields[3] == kUnreadForRights});
      if (checker > 0) problems.back().reason += fmt::format(" (found by rank {})", checker);
    }
  }
  return problems;
}

}  // namespace llmtrain::checkpoint
