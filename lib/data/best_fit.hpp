#pragma once
/// Best-fit packing: documents into samples without cutting those that fit.

#include <cstdint>
#include <functional>
#include <vector>

namespace llmtrain::data {

/// A document of the packing, or, of one that is longer than a sample, piece number `chunk` of as
/// many rows as a sample has (the last one of the rest).
struct PackedChunk {
  std::uint64_t document = 0;
  std::uint32_t chunk = 0;
  std::uint32_t rows = 0;
};

/// Which chunks each sample holds.
struct BestFitLayout {
  std::vector<PackedChunk> chunks;    ///< of all samples, one sample behind the other
  std::vector<std::uint64_t> starts;  ///< of each sample in `chunks`, and the end
};

/// Packs documents of rows_of(d) rows, d below `documents`, into samples of `seq_len` rows: longest
/// first, in the order of documents where they are equally long, each into the sample with the
/// least room that holds it (best-fit decreasing; Ding et al., "Fewer truncations improve language
/// modeling", 2024). A pure function; O(documents x (1 + seq_len / 64)) at worst, 16 bytes per
/// chunk.
BestFitLayout pack_best_fit(std::uint64_t documents, std::uint32_t seq_len,
                            const std::function<std::uint64_t(std::uint64_t)>& rows_of);

}  // namespace llmtrain::data
