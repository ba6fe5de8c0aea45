#pragma once
/// Several sources in one stream: which source sample i comes from, and which of its samples it is.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace llmtrain::data {

/// Divides positions 0, 1, 2, ... among parts in proportion to weights, without state. A binary
/// tree over the parts: a node with n positions gives its left half the nearest whole number to its
/// share of n, ties up, and its right half the rest. So position i is a pure function of i in O(log
/// parts), and of any n positions in a row each part has its share to within 1 + ceil(log2 parts).
class Proportions {
 public:
  /// At least one weight, none negative, their sum positive. Weights count to 40 bits of the
  /// largest.
  explicit Proportions(std::span<const double> weights);

  /// How many of the first `n` (at most 2^60) positions part `part` has.
  std::uint64_t count(std::size_t part, std::uint64_t n) const;
  /// The part of position `index`.
  std::size_t part_at(std::uint64_t index) const;

 private:
  std::uint64_t left_count(std::size_t low, std::size_t middle, std::size_t high,
                           std::uint64_t n) const;

  std::vector<std::uint64_t> sums_;  // of the weights before part i
};

struct MixtureSource {
  std::uint64_t samples = 0;              ///< of one pass; at least 1
  std::optional<double> max_epochs = {};  ///< passes after which the source has ended
};

/// Weights from sample `first_sample` of the stream on.
struct MixtureStage {
  std::uint64_t first_sample = 0;
  std::vector<double> weights;  ///< one per source; 0: not in this stage
};

/// The order of sources in the endless stream. A source that has given floor(max_epochs x samples)
/// samples ends; from there on the others share its part in proportion to their weights. When no
/// source with a weight is left, the stream ends.
class Mixture {
 public:
  /// RecipeError unless stages begin at 0, rise, and have a weight for each source as Proportions
  /// asks for.
  Mixture(std::vector<MixtureSource> sources, const std::vector<MixtureStage>& stages);

  /// A sample of a source: number `index` of the source's own endless stream.
  struct Place {
    std::size_t source = 0;
    std::uint64_t index = 0;
  };
  /// Place of sample `index` (below length()).
  Place place(std::uint64_t index) const;
  /// Samples of `source` among the first `n` (at most length()) of the stream.
  std::uint64_t count(std::size_t source, std::uint64_t n) const;
  /// Samples after which nothing is left; kEndless if some source never ends.
  std::uint64_t length() const { return length_; }
  static constexpr std::uint64_t kEndless = std::uint64_t{1} << 60;

  /// Where a source ended.
  struct End {
    std::size_t source = 0;
    std::uint64_t sample = 0;  ///< of the stream: the first behind its last
  };
  const std::vector<End>& ends() const { return ends_; }

 private:
  struct Segment {
    std::uint64_t begin = 0;
    Proportions proportions;
    std::vector<std::uint64_t> before;  // samples of each source before `begin`
  };
  /// Adds segments for a stage until `end` or until no source is left; true while some is.
  bool add_stage(const MixtureStage& stage, std::uint64_t end);
  const Segment& segment_of(std::uint64_t index) const;
  std::uint64_t limit(std::size_t source) const;

  std::vector<MixtureSource> sources_;
  std::vector<std::uint64_t> given_;  // while building: samples of each source so far
  std::vector<Segment> segments_;
  std::vector<End> ends_;
  std::uint64_t length_ = 0;
};

}  // namespace llmtrain::data
