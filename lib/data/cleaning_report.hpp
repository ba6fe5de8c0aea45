#pragma once
/// What cleaning dropped, and why.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/hash.hpp"

namespace llmtrain::data {

/// A line of dropped.jsonl.
struct DroppedDocument {
  std::string document;    ///< name, as in token sets
  std::uint64_t file = 0;  ///< index into the source files
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string reason;   ///< name of a filter, or "exact_duplicate", "near_duplicate", each also
                        ///< with "_of_held_out" behind it
  double value = 0;     ///< what the filter measured, or the estimated Jaccard similarity
  std::string partner;  ///< the document that stays instead; empty for filters

  std::string to_json_line() const;
  /// DataError naming `name` for anything malformed.
  static DroppedDocument from_json_line(std::string_view line, std::string_view name);
};

/// All documents with one reason.
struct DropCount {
  std::string reason;
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;
  std::vector<DroppedDocument> examples;  ///< the first ones
};

struct CleaningReport {
  std::uint64_t documents = 0;  ///< training documents with text, before cleaning
  std::uint64_t bytes = 0;
  std::uint64_t held_out_documents = 0;         ///< never dropped
  std::uint64_t held_out_exact_duplicates = 0;  ///< of other held-out documents
  std::uint64_t held_out_near_duplicates = 0;
  std::vector<DropCount> dropped;  ///< every reason that was looked for, also if it hit nothing

  void add(const DroppedDocument& document);
  std::uint64_t dropped_documents() const;
  std::uint64_t dropped_bytes() const;
  /// "min_words 3, exact_duplicate 5": reasons that dropped something.
  std::string reasons() const;
  /// Several aligned lines.
  std::string summary() const;
  /// cleaning.json; `key` and `list_hash` (of dropped.jsonl) go into it.
  std::string to_json(std::string_view key, const Hash128& list_hash) const;

  struct Parsed;
  /// DataError naming `name` for anything malformed.
  static Parsed from_json(std::string_view text, std::string_view name);
};

struct CleaningReport::Parsed {
  CleaningReport report;
  std::string key;
  std::string list_hash;
};

}  // namespace llmtrain::data
