#pragma once
/// How fast documents are read and cleaned, without tokenising and without writing anything.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/data/cleaning.hpp"
#include "lib/data/source.hpp"

namespace llmtrain::data {

struct StageSpeed {
  std::string_view stage;
  double seconds = 0;  ///< of one processor; waiting for the disk does not count
};

struct PreparationSpeed {
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;  ///< of text
  /// Reading (with the check of UTF-8 and the split into documents), then those stages that the
  /// options ask for.
  std::vector<StageSpeed> stages;
  double seconds() const;
};

/// Does on one thread what `clean_share` and `prepare` do before they tokenise. DataError as
/// `read_documents`.
PreparationSpeed measure_preparation(std::span<const SourceFile> files,
                                     const CleaningRequest& request);

}  // namespace llmtrain::data
