// Blocks of a parameter's elements that share a value of an optimizer's state.
#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

namespace {

/// Elements of a block along one dim that are here.
std::int64_t extent(const StateSpec& state, const Parameter& parameter, int dim) {
  return std::min(state.block[dim], parameter.box().shape[dim]);
}

}  // namespace

std::int64_t elements_per_value(const StateSpec& state, const Parameter& parameter) {
  std::int64_t elements = 1;
  for (int d = 0; d < state.block.rank(); ++d) elements *= extent(state, parameter, d);
  return elements;
}

TensorPlace place_of(const StateSpec& state, const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  if (state.is_elementwise()) return place;
  require(state.block.rank() == place.box.shape.rank(), "{}: {} in blocks of {}", parameter.name(),
          to_string(place.global_shape), to_string(state.block));
  for (int d = 0; d < state.block.rank(); ++d) {
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t block = state.block[d], here = place.box.shape[d];
    require(place.global_shape[d] % block == 0 && here % extent(state, parameter, d) == 0,
            "{}: {} of {} in blocks of {}", parameter.name(), to_string(place.box.shape),
            to_string(place.global_shape), to_string(state.block));
    place.global_shape = place.global_shape.with(d, place.global_shape[d] / block);
    place.box.shape = place.box.shape.with(d, here / extent(state, parameter, d));
    place.box.offset[at] /= block;
  }
  const std::int64_t each = elements_per_value(state, parameter);
  require(place.own.first % each == 0 && place.own.count % each == 0,
          "{}: a slice cuts blocks of {}", parameter.name(), to_string(state.block));
  place.own = {place.own.first / each, place.own.count / each};
  return place;
}

bool begins_blocks(const StateSpec& state, const Parameter& parameter) {
  for (int d = 0; d < state.block.rank(); ++d) {
    if (parameter.box().offset[static_cast<std::size_t>(d)] % state.block[d] != 0) return false;
  }
  return true;
}

}  // namespace llmtrain::optim
