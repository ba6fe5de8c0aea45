#include "lib/data/near_duplicates.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/data/similarity_sketch.hpp"

namespace llmtrain::data {

namespace {

constexpr double kCandidateProbability = 0.99;
constexpr double kStandardErrors = 2.0;
constexpr std::uint32_t kNone = ~std::uint32_t{0};

}  // namespace

double candidate_probability(const Bands& bands, double jaccard) {
  return 1.0 - std::pow(1.0 - std::pow(jaccard, bands.rows), bands.count);
}

Bands choose_bands(std::uint32_t permutations, double threshold) {
  for (std::uint32_t rows = permutations; rows > 1; --rows) {
    const Bands bands{permutations / rows, rows};
    if (candidate_probability(bands, threshold) >= kCandidateProbability) return bands;
  }
  return {permutations, 1};
}

double least_estimate(const NearDuplicateOptions& options) {
  const double t = options.threshold;
  return t - kStandardErrors * std::sqrt(t * (1.0 - t) / options.permutations);
}

NearDuplicateIndex::NearDuplicateIndex(const NearDuplicateOptions& options,
                                       std::span<const std::uint32_t> sketches)
    : permutations_(options.permutations),
      bands_(choose_bands(options.permutations, options.threshold)),
      least_estimate_(least_estimate(options)),
      sketches_(sketches),
      documents_(sketches.size() / options.permutations),
      head_mask_(std::bit_ceil(std::max<std::size_t>(documents_, 1)) - 1),
      heads_(bands_.count * (head_mask_ + 1), kNone),
      next_(bands_.count * documents_, kNone) {
  require(documents_ < kNone, "{} documents", documents_);
}

std::span<const std::uint32_t> NearDuplicateIndex::sketch(std::uint32_t document) const {
  return sketches_.subspan(std::size_t{document} * permutations_, permutations_);
}

std::span<const std::uint32_t> NearDuplicateIndex::band_of(std::uint32_t document,
                                                           std::uint32_t band) const {
  return sketch(document).subspan(std::size_t{band} * bands_.rows, bands_.rows);
}

std::size_t NearDuplicateIndex::head_of(std::uint32_t document, std::uint32_t band) const {
  const std::uint64_t hash = hash64(std::as_bytes(band_of(document, band)), band);
  return band * (head_mask_ + 1) + (hash & head_mask_);
}

std::optional<NearDuplicateIndex::Match> NearDuplicateIndex::find(std::uint32_t document) const {
  Match best{.document = kNone};
  for (std::uint32_t band = 0; band < bands_.count; ++band) {
    const auto own = band_of(document, band);
    const std::uint32_t* const next = next_.data() + band * documents_;
    for (std::uint32_t other = heads_[head_of(document, band)]; other != kNone;
         other = next[other]) {
      if (other >= best.document) continue;
      const auto others = band_of(other, band);
      if (!std::equal(own.begin(), own.end(), others.begin())) continue;
      const double similarity = estimated_jaccard(sketch(document), sketch(other));
      if (similarity >= least_estimate_) best = {other, similarity};
    }
  }
  return best.document == kNone ? std::nullopt : std::optional(best);
}

void NearDuplicateIndex::add(std::uint32_t document) {
  for (std::uint32_t band = 0; band < bands_.count; ++band) {
    std::uint32_t& head = heads_[head_of(document, band)];
    next_[band * documents_ + document] = head;
    head = document;
  }
}

}  // namespace llmtrain::data
