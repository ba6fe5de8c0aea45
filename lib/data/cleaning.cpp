#include "lib/data/cleaning.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/data/cleaning_decisions.hpp"
#include "lib/data/document_signatures.hpp"
#include "lib/data/parallel.hpp"
#include "lib/data/similarity_sketch.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

// Part of the key: raised when the same input would give other decisions.
constexpr std::uint32_t kCleaningVersion = 1;

/// Lower case of ASCII letters, white space as one space, none at the ends.
std::string normalized(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool space = false;
  for (const char c : text) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) {
      space = true;
      continue;
    }
    if (space && !out.empty()) out += ' ';
    space = false;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return out;
}

class SignatureMaker {
 public:
  SignatureMaker(std::span<const SourceFile> files, const CleaningRequest& request)
      : files_(files), request_(request) {}

  SignatureShard make(const ShardPlan& plan) const {
    struct Located {
      std::uint32_t file;
      Document document;
    };
    std::vector<Located> texts;
    for (const FileRange& range : plan) {
      for (Document& document : read_documents(files_[range.file], range.begin, range.end,
                                               [](std::string_view) { return true; })) {
        // Without text it goes into no set anyway.
        if (!document.text.empty()) texts.push_back({range.file, std::move(document)});
      }
    }
    SignatureShard shard{.sketch_entries = request_.options.near
                                               ? request_.options.near->permutations
                                               : std::uint32_t{0}};
    shard.documents.resize(texts.size());
    shard.sketches.resize(texts.size() * shard.sketch_entries);
    parallel_for(texts.size(), [&](std::size_t i) {
      shard.documents[i] =
          sign(texts[i].file, texts[i].document,
               std::span(shard.sketches).subspan(i * shard.sketch_entries, shard.sketch_entries));
    });
    return shard;
  }

 private:
  DocumentSignature sign(std::uint32_t file, const Document& document,
                         std::span<std::uint32_t> sketch) const {
    const std::string name = document_name(files_[file].name, document.offset, document.whole_file);
    const bool held_out = is_held_out(name, request_.held_out);
    DocumentSignature signature{.offset = document.offset,
                                .bytes = document.text.size(),
                                .file = file,
                                .flags = (document.whole_file ? DocumentSignature::kWholeFile : 0) |
                                         (held_out ? DocumentSignature::kHeldOut : 0)};
    if (!held_out) {
      if (const auto verdict = filter_text(document.text, request_.options.filters)) {
        signature.filter = static_cast<std::int32_t>(verdict->filter);
        signature.value = verdict->value;
        return signature;
      }
    }
    if (sign_text(document.text, request_.options, signature.hash, sketch)) {
      signature.flags |= DocumentSignature::kHasSketch;
    }
    return signature;
  }

  std::span<const SourceFile> files_;
  const CleaningRequest& request_;
};

/// The signatures in a directory, by shard.
class SignatureFiles {
 public:
  SignatureFiles(std::span<const SourceFile> files, const CleaningRequest& request,
                 const std::string& key, const fs::path& directory)
      : maker_(files, request),
        key_(key),
        directory_(directory),
        plans_(plan_shards(files, request.shard_source_bytes)) {}

  std::size_t count() const { return plans_.size(); }
  bool exists(std::size_t shard) const { return has_signatures(path(shard), build_key(shard)); }
  /// Makes them if they are missing or damaged.
  SignatureShard open(std::size_t shard) const {
    if (auto there = read_signatures(path(shard), build_key(shard))) return std::move(*there);
    SignatureShard made = maker_.make(plans_[shard]);
    write_signatures(path(shard), build_key(shard), made);
    return made;
  }

 private:
  fs::path path(std::size_t shard) const {
    return directory_ / fmt::format("signatures-{:05}.bin", shard);
  }
  std::uint64_t build_key(std::size_t shard) const {
    return hash64(fmt::format("{}/{}", key_, shard));
  }

  SignatureMaker maker_;
  const std::string& key_;
  const fs::path& directory_;
  std::vector<ShardPlan> plans_;
};

std::vector<DroppedDocument> read_dropped(const fs::path& path, const std::string& expected_hash) {
  const std::string text = read_file(path);
  require<DataError>(to_hex(hash128(text)) == expected_hash,
                     "{}: not the list that {} describes; delete the folder and prepare the data "
                     "again",
                     path.string(), kCleaningReportName);
  std::vector<DroppedDocument> dropped;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    dropped.push_back(DroppedDocument::from_json_line(std::string_view(text).substr(at, end - at),
                                                      path.string()));
    at = end + 1;
  }
  return dropped;
}

/// The decisions in `directory`; empty, with a line that says why, if they are not to be used.
std::shared_ptr<const Cleaning> read_cleaning(std::span<const SourceFile> files,
                                              const std::string& key, const fs::path& directory) {
  const fs::path path = directory / kCleaningReportName;
  std::string reason = "not done yet";
  if (fs::exists(path)) {
    try {
      std::string text = read_file(path);
      CleaningReport::Parsed there = CleaningReport::from_json(text, path.string());
      if (there.key == key) {
        const auto dropped = read_dropped(directory / kDroppedName, there.list_hash);
        return std::make_shared<const Cleaning>(std::move(text), std::move(there), files, dropped);
      }
      reason = "files or options changed";
    } catch (const DataError& e) {
      reason = e.what();
    }
  }
  log::info("{}: cleaning {} files ({})", directory.string(), files.size(), reason);
  return nullptr;
}

}  // namespace

bool sign_text(std::string_view text, const CleaningOptions& options, Hash128& hash,
               std::span<std::uint32_t> sketch) {
  if (options.exact) {
    hash = options.normalize ? hash128(normalized(text)) : hash128(text);
  }
  if (!options.near) return false;
  thread_local std::vector<std::uint64_t> shingles;
  shingles.clear();
  append_shingles(text, options.near->shingles, shingles);
  if (shingles.empty()) return false;
  Sketcher(options.near->permutations).sketch(shingles, sketch);
  return true;
}

Cleaning::Cleaning(std::string json, CleaningReport::Parsed parsed,
                   std::span<const SourceFile> files, std::span<const DroppedDocument> dropped)
    : json_(std::move(json)), parsed_(std::move(parsed)) {
  for (const DroppedDocument& document : dropped) {
    require<DataError>(document.file < files.size(), "{}: a document of file {} of {}",
                       kDroppedName, document.file, files.size());
    offsets_[files[document.file].path.string()].push_back(document.offset);
  }
  for (auto& [path, offsets] : offsets_) std::sort(offsets.begin(), offsets.end());
}

bool Cleaning::drops_of(const SourceFile& file) const {
  return offsets_.contains(file.path.string());
}

bool Cleaning::drops(const SourceFile& file, std::uint64_t offset) const {
  const auto found = offsets_.find(file.path.string());
  return found != offsets_.end() &&
         std::binary_search(found->second.begin(), found->second.end(), offset);
}

std::string cleaning_key(std::span<const SourceFile> files, const CleaningRequest& request) {
  Hasher128 hasher;
  Hasher128 rules;
  hash_files(files, hasher, rules);
  const CleaningOptions& options = request.options;
  rules.update(fmt::format("{} {} {} {} {} {}", kCleaningVersion, request.held_out.modulus,
                           request.held_out.remainder, request.shard_source_bytes, options.exact,
                           options.normalize));
  if (options.near) {
    rules.update(
        fmt::format(" near {} {} {} {}", options.near->threshold, options.near->permutations,
                    static_cast<int>(options.near->shingles.unit), options.near->shingles.size));
  }
  for (const FilterThreshold& on : options.filters) {
    rules.update(fmt::format(" {} {}", text_filter_table()[on.filter].name, on.threshold));
  }
  hasher.update_value(rules.digest());
  return to_hex(hasher.digest());
}

CleaningStep clean_share(std::span<const SourceFile> files, const CleaningRequest& request,
                         const Share& share, const fs::path& directory) {
  const std::string key = cleaning_key(files, request);
  if (auto there = read_cleaning(files, key, directory)) return {.cleaning = std::move(there)};
  create_directories_durably(directory);
  const SignatureFiles signatures(files, request, key, directory);
  CleaningStep step{.shards = signatures.count()};
  for (std::size_t i = 0; i < step.shards; ++i) {
    if (share.has(i)) signatures.open(i);
  }
  for (std::size_t i = 0; i < step.shards; ++i) {
    if (!signatures.exists(i)) step.missing.push_back(i);
  }
  if (!step.missing.empty()) return step;
  CleaningDecisions decisions = decide(files, request.options, step.shards,
                                       [&](std::size_t i) { return signatures.open(i); });
  std::string list;
  for (const DroppedDocument& document : decisions.dropped) list += document.to_json_line();
  const Hash128 list_hash = hash128(list);
  std::string text = decisions.report.to_json(key, list_hash);
  write_file_atomic(directory / kDroppedName, list);
  write_file_atomic(directory / kCleaningReportName, text);
  step.cleaning = std::make_shared<const Cleaning>(
      std::move(text), CleaningReport::Parsed{std::move(decisions.report), key, to_hex(list_hash)},
      files, decisions.dropped);
  return step;
}

std::shared_ptr<const Cleaning> open_or_clean(std::span<const SourceFile> files,
                                              const CleaningRequest& request,
                                              const fs::path& directory) {
  return clean_share(files, request, {}, directory).cleaning;
}

}  // namespace llmtrain::data
