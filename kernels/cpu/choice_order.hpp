#pragma once
/// In which order the choices of an expert find room.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/router.hpp"

namespace llmtrain::kernels {

/// What of a score counts: rows that are equal but for errors of rounding, as the first tokens of
/// two documents, are to be equal whatever computed them.
inline double counted_score(double score) { return static_cast<float>(score); }
inline float counted_score(float score) {
  constexpr std::uint32_t kDropped = 0xff;  // of the 24 bits of the significand
  const std::uint32_t nearest = std::bit_cast<std::uint32_t>(score) + (kDropped + 1) / 2;
  return std::bit_cast<float>(nearest & ~kDropped);
}

/// Of LimitChoices with scores of type T.
template <class T>
class ChoiceOrder {
 public:
  explicit ChoiceOrder(const LimitChoices& op)
      : score_(op.score.as<T>()),
        position_(op.position.defined() ? op.position.as<std::int32_t>() : nullptr),
        top_k_(op.expert.cols()),
        sequences_(op.sequences),
        rows_of_part_(op.expert.rows() / (op.sequences * op.parts)) {}

  /// That of choice c.
  std::int64_t sequence(std::int64_t c) const { return c / (top_k_ * rows_of_part_) % sequences_; }
  /// Choice a finds room before b, another one of the same expert in the same sequence.
  bool before(std::int64_t a, std::int64_t b) const {
    const T x = score(a), y = score(b);
    return x != y ? x > y : position(a) < position(b);
  }

 private:
  T score(std::int64_t c) const {
    return std::isnan(score_[c]) ? std::numeric_limits<T>::infinity() : counted_score(score_[c]);
  }
  std::int64_t position(std::int64_t c) const {
    return position_ == nullptr ? c / top_k_ : position_[c / top_k_];
  }

  const T* score_;
  const std::int32_t* position_;
  std::int64_t top_k_, sequences_, rows_of_part_;
};

}  // namespace llmtrain::kernels
