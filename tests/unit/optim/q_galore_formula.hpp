#pragma once
/// The formula of Q-GaLore.

#include "tests/unit/optim/projected_formulas.hpp"

namespace llmtrain::optim {

/// A projector of five bits in groups of seven.
class CodedProjector {
 public:
  explicit CodedProjector(States& states)
      : codes_(&states["projector"]),
        scales_(&states["projector_scale"]),
        zeros_(&states["projector_zero"]) {}

  void put(const Values& values) {
    codes_->resize(values.size());
    scales_->resize((values.size() + 6) / 7);
    zeros_->resize(scales_->size());
    for (std::size_t begin = 0; begin < values.size(); begin += 7) {
      const std::size_t end = std::min(begin + 7, values.size());
      float least = INFINITY, most = -INFINITY;
      for (std::size_t i = begin; i < end; ++i) {
        least = std::min(least, static_cast<float>(values[i]));
        most = std::max(most, static_cast<float>(values[i]));
      }
      const float scale = std::max(most - least, 1e-5F) / 31;
      const double zero = std::clamp(-std::rint(static_cast<double>(least / scale)), 0.0, 31.0);
      (*scales_)[begin / 7] = scale;
      (*zeros_)[begin / 7] = zero;
      for (std::size_t i = begin; i < end; ++i) {
        const float steps = static_cast<float>(values[i]) / scale;
        (*codes_)[i] = std::clamp(std::rint(static_cast<double>(steps)) + zero, 0.0, 31.0);
      }
    }
  }
  Values get() const {
    Values values;
    for (std::size_t i = 0; i < codes_->size(); ++i) {
      values.push_back((*scales_)[i / 7] * ((*codes_)[i] - (*zeros_)[i / 7]));
    }
    return values;
  }

 private:
  Values *codes_, *scales_, *zeros_;
};

/// Of columns [rows, 2] the first, with the sign of the last time's, to which its similarity is the
/// newest of two; their mean reaches a threshold of -1 and doubles the gap.
inline void follow(Values& columns, States& states, const Step& s) {
  Values leading;
  for (std::size_t i = 0; i < columns.size(); i += 2) leading.push_back(columns[i]);
  if (s.t > 1) {
    double similarity = 0;
    for (std::size_t i = 0; i < leading.size(); ++i) {
      similarity += leading[i] * states["leading_vector"][i];
    }
    states["similarities"] = {states["similarities"][1], std::abs(similarity)};
    for (std::size_t i = 0; similarity < 0 && i < leading.size(); ++i) {
      columns[2 * i] = leading[i] = -leading[i];
    }
    if (states["similarities"][0] >= -1) states["gap"][0] *= 2;
  }
  states["leading_vector"] = leading;
}

/// rank 2, update_proj_gap 1, queue_size 2, cos_threshold -1, scale 0.5; of matrices that are wider
/// than high. With codes proj_bits 5, proj_group_size 7 and min_8bit_size 0, else none.
template <bool coded>
void q_galore_formula(Values& p, Values g, States& states, const Step& s) {
  if (s.parameter->role() != ParameterRole::matrix) {
    return coded ? adamw_8bit_formula(p, g, states, s) : adamw_formula(p, g, states, s);
  }
  const auto rows = static_cast<std::size_t>(s.parameter->global_shape()[0]);
  const auto cols = static_cast<std::size_t>(s.parameter->global_shape()[1]);
  if (s.t == 1) {
    states["gap"] = {1};
    states["similarities"] = {-2, -2};
    for (const char* moment : {"m", "v"}) states[moment].assign(2 * cols, 0);
    if (coded) {
      for (const char* scale : {"m_scale", "v_scale"}) states[scale].clear();
    }
  }
  if (std::fmod(s.t - 1, states["gap"][0]) == 0) {
    Values columns = two_left_vectors(g, rows, cols);
    follow(columns, states, s);
    states["projector"] = columns;
    if (coded) CodedProjector(states).put(columns);
  }
  const Values projector = coded ? CodedProjector(states).get() : states["projector"];
  const Values inside = product(transposed(projector, rows, 2), g, 2, rows, cols);
  Step in_subspace = s;
  in_subspace.lr = 1;
  in_subspace.weight_decay = 0;
  Values moved(inside.size());
  coded ? adamw_8bit_formula(moved, inside, states, in_subspace)
        : adamw_formula(moved, inside, states, in_subspace);
  const Values step = product(projector, moved, rows, 2, cols);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] += s.lr * 0.5 * step[i];
  shrink(p, s);
}

}  // namespace llmtrain::optim
