#pragma once
/// Finds the documents that resemble one: locality-sensitive hashing over bands of sketches.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/data/shingles.hpp"

namespace llmtrain::data {

struct NearDuplicateOptions {
  double threshold = 0.8;            ///< Jaccard similarity of the sets of shingles
  std::uint32_t permutations = 128;  ///< entries of a sketch
  ShingleOptions shingles;
};

/// How a sketch is cut: documents that agree in all rows of a band are compared.
struct Bands {
  std::uint32_t count = 1;
  std::uint32_t rows = 1;
};

/// Probability that two documents of this similarity agree in a band: 1 - (1 - J^rows)^count.
double candidate_probability(const Bands& bands, double jaccard);

/// The most rows per band (the fewest comparisons) with which a pair at the threshold is compared
/// with a probability of at least 0.99; one row where none reaches that.
Bands choose_bands(std::uint32_t permutations, double threshold);

/// Least estimate that counts as a near duplicate: two standard errors below the threshold, so that
/// about 98 % of the pairs at the threshold do.
double least_estimate(const NearDuplicateOptions& options);

/// Documents that were kept, found by their sketches. About 4 (2 count + permutations) bytes per
/// document that it may hold, sketches included.
class NearDuplicateIndex {
 public:
  /// `sketches`: `permutations` entries per document, alive as long as the index.
  NearDuplicateIndex(const NearDuplicateOptions& options, std::span<const std::uint32_t> sketches);

  struct Match {
    std::uint32_t document = 0;
    double similarity = 0;  ///< estimated
  };
  /// The first added document that is a near duplicate of `document`.
  std::optional<Match> find(std::uint32_t document) const;
  /// Documents are added in ascending order.
  void add(std::uint32_t document);

 private:
  std::span<const std::uint32_t> sketch(std::uint32_t document) const;
  std::span<const std::uint32_t> band_of(std::uint32_t document, std::uint32_t band) const;
  std::size_t head_of(std::uint32_t document, std::uint32_t band) const;

  std::uint32_t permutations_;
  Bands bands_;
  double least_estimate_;
  std::span<const std::uint32_t> sketches_;
  std::size_t documents_;
  std::uint64_t head_mask_;
  std::vector<std::uint32_t> heads_;  // [band][hash]: last document added there
  std::vector<std::uint32_t> next_;   // [band][document]: the one added before it
};

}  // namespace llmtrain::data
