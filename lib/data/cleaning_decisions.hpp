#pragma once
/// The second pass of cleaning: which documents are dropped, given all signatures.

#include <functional>
#include <span>
#include <vector>

#include "lib/data/cleaning.hpp"
#include "lib/data/document_signatures.hpp"

namespace llmtrain::data {

struct CleaningDecisions {
  CleaningReport report;
  std::vector<DroppedDocument> dropped;  ///< in the order of the sources
};

/// Shards of signatures come from `read(0)` to `read(shards - 1)`, and each is asked for twice, so
/// that one at a time is in memory.
CleaningDecisions decide(std::span<const SourceFile> files, const CleaningOptions& options,
                         std::size_t shards,
                         const std::function<SignatureShard(std::size_t)>& read);

}  // namespace llmtrain::data
