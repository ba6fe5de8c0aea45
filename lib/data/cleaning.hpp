#pragma once
/// Which training documents are left out of the token sets: duplicates, and those that a filter
/// drops.
///
/// What is held out never depends on cleaning, so figures of runs with and without it compare. A
/// training document that duplicates a held-out one is dropped (decontamination); held-out
/// documents that duplicate each other are counted and stay. Among training documents the first in
/// the order of the sources stays. A near duplicate is one of a document that stays, not of another
/// dropped one: a chain of small changes does not take a document with it that resembles nothing.
///
/// Passes: signatures per shard of the sources (each task of a job array makes its share);
/// decisions over all of them, in memory (`NearDuplicateIndex`); then tokenising reads the
/// decisions. All are files in one directory, so that an interrupted call goes on where it was.
/// Nothing depends on the number of threads or tasks.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/data/cleaning_report.hpp"
#include "lib/data/near_duplicates.hpp"
#include "lib/data/shard_plan.hpp"
#include "lib/data/source.hpp"
#include "lib/data/text_filters.hpp"

namespace llmtrain::data {

struct CleaningOptions {
  bool exact = false;      ///< drop documents whose text has the XXH3-128 of one that stays
  bool normalize = false;  ///< exact: without case of ASCII letters, white space runs as one space
  std::optional<NearDuplicateOptions> near;
  std::vector<FilterThreshold> filters;  ///< in the order in which they are asked
  bool active() const { return exact || near || !filters.empty(); }
};

struct CleaningRequest {
  CleaningOptions options;
  HeldOutRule held_out;
  std::uint64_t shard_source_bytes = kShardSourceBytes;
};

/// Hash of the text, and, with near duplicates, the sketch of its shingles into `sketch`, which is
/// empty otherwise. False if there are no shingles. For any number of threads.
bool sign_text(std::string_view text, const CleaningOptions& options, Hash128& hash,
               std::span<std::uint32_t> sketch);

/// What was decided.
class Cleaning {
 public:
  /// `json`: the content of cleaning.json.
  Cleaning(std::string json, CleaningReport::Parsed parsed, std::span<const SourceFile> files,
           std::span<const DroppedDocument> dropped);
  /// Of everything that decides what is dropped.
  const std::string& key() const { return parsed_.key; }
  const CleaningReport& report() const { return parsed_.report; }
  const std::string& json() const { return json_; }
  /// Whether it leaves out anything of `file`.
  bool drops_of(const SourceFile& file) const;
  /// Whether the document at `offset` of `file` is left out.
  bool drops(const SourceFile& file, std::uint64_t offset) const;

 private:
  std::string json_;
  CleaningReport::Parsed parsed_;
  std::map<std::string, std::vector<std::uint64_t>> offsets_;  // by path; sorted
};

/// Hash of the files, the split and the options.
std::string cleaning_key(std::span<const SourceFile> files, const CleaningRequest& request);

/// File names in the directory.
inline constexpr std::string_view kCleaningReportName = "cleaning.json";
inline constexpr std::string_view kDroppedName = "dropped.jsonl";

struct CleaningStep {
  std::shared_ptr<const Cleaning> cleaning;  ///< null while signatures of other tasks are missing
  std::vector<std::size_t> missing;          ///< those shards
  std::size_t shards = 0;
};

/// Opens the decisions in `directory` if they were made from the same input; otherwise makes the
/// share's signatures that are not there, and the decisions if that was the last. Any number of
/// tasks may do so at the same time. DataError as `read_documents`.
CleaningStep clean_share(std::span<const SourceFile> files, const CleaningRequest& request,
                         const Share& share, const std::filesystem::path& directory);

/// As clean_share with everything as its share.
std::shared_ptr<const Cleaning> open_or_clean(std::span<const SourceFile> files,
                                              const CleaningRequest& request,
                                              const std::filesystem::path& directory);

}  // namespace llmtrain::data
