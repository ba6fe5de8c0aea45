#pragma once
/// In which order the choices of an expert find room.

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/router.hpp"

namespace llmtrain::kernels {

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
    return std::isnan(score_[c]) ? std::numeric_limits<T>::infinity() : score_[c];
  }
  std::int64_t position(std::int64_t c) const {
    return position_ == nullptr ? c / top_k_ : position_[c / top_k_];
  }

  const T* score_;
  const std::int32_t* position_;
  std::int64_t top_k_, sequences_, rows_of_part_;
};

}  // namespace llmtrain::kernels
