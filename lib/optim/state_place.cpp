// Blocks and runs of a parameter's elements that share a value of an optimizer's state.
#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

namespace {

std::int64_t runs_of(std::int64_t elements, std::int64_t run) { return (elements + run - 1) / run; }

/// Elements of a block along one dim that are here.
std::int64_t extent(const StateSpec& state, const Parameter& parameter, int dim) {
  return std::min(state.block[dim], parameter.box().shape[dim]);
}

/// Whether every row of a tensor is a whole number of runs.
bool rows_are_runs(const Shape& global, std::int64_t run) {
  return global.rank() > 0 && global[global.rank() - 1] % run == 0;
}

/// Where a box begins in the tensor's row-major order.
std::int64_t first_element(const Shape& global, const Box& box) {
  std::int64_t first = 0;
  for (int d = 0; d < global.rank(); ++d) {
    first = first * global[d] + box.offset[static_cast<std::size_t>(d)];
  }
  return first;
}

/// Whether a box's elements are neighbours in the tensor's row-major order.
bool is_one_piece(const Shape& global, const Box& box) {
  bool divided = false;  // by this dim or one behind it
  for (int d = global.rank() - 1; d >= 0; --d) {
    if (divided && box.shape[d] != 1) return false;
    divided = divided || box.shape[d] != global[d];
  }
  return true;
}

TensorPlace place_of_runs(const StateSpec& state, const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  const Shape global = place.global_shape;
  const std::int64_t run = state.run, end = place.own.first + place.own.count;
  require(holds_whole_runs(global, place.box, run) && place.own.first % run == 0 &&
              (end % run == 0 || end == place.box.shape.numel()),
          "{}: a part cuts runs of {} elements", parameter.name(), run);
  if (rows_are_runs(global, run)) {
    const int last = global.rank() - 1;
    place.global_shape = global.with(last, global[last] / run);
    place.box.shape = place.box.shape.with(last, place.box.shape[last] / run);
    place.box.offset[static_cast<std::size_t>(last)] /= run;
  } else {
    const std::int64_t first = first_element(global, place.box);
    place.global_shape = {runs_of(global.numel(), run)};
    place.box = {.offset = {first / run}, .shape = {runs_of(place.box.shape.numel(), run)}};
  }
  place.own = {place.own.first / run, runs_of(place.own.count, run)};
  return place;
}

/// Elements of a matrix that are here.
std::int64_t matrix_here(const Parameter& parameter) {
  const Shape& box = parameter.box().shape;
  require(box.rank() >= 2, "{}: a state of matrices", parameter.name());
  return box[box.rank() - 2] * box[box.rank() - 1];
}

TensorPlace place_of_matrices(const StateSpec& state, const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  const std::int64_t here = matrix_here(parameter), each = state.matrix.numel();
  require(place.own.first % here == 0 && place.own.count % here == 0, "{}: a slice cuts matrices",
          parameter.name());
  for (int d = place.box.shape.rank() - 2, of = 0; of < 2; ++d, ++of) {
    place.global_shape = place.global_shape.with(d, state.matrix[of]);
    place.box.shape = place.box.shape.with(d, state.matrix[of]);
    place.box.offset[static_cast<std::size_t>(d)] = 0;
  }
  place.own = {place.own.first / here * each, place.own.count / here * each};
  return place;
}

}  // namespace

bool holds_whole_runs(const Shape& global, const Box& box, std::int64_t run) {
  const int last = global.rank() - 1;
  if (rows_are_runs(global, run)) {
    return box.shape[last] % run == 0 && box.offset[static_cast<std::size_t>(last)] % run == 0;
  }
  const std::int64_t begin = first_element(global, box), end = begin + box.shape.numel();
  return is_one_piece(global, box) && begin % run == 0 && (end % run == 0 || end == global.numel());
}

std::int64_t elements_per_value(const StateSpec& state, const Parameter& parameter) {
  if (state.run > 0) return state.run;
  std::int64_t elements = 1;
  for (int d = 0; d < state.block.rank(); ++d) elements *= extent(state, parameter, d);
  return elements;
}

std::int64_t values_for(const StateSpec& state, const Parameter& parameter, std::int64_t elements) {
  if (state.matrix.rank() > 0) return elements / matrix_here(parameter) * state.matrix.numel();
  const std::int64_t each = elements_per_value(state, parameter);
  return (elements + each - 1) / each;
}

TensorPlace place_of(const StateSpec& state, const Parameter& parameter) {
  TensorPlace place = parameter.own_place();
  if (state.is_elementwise()) return place;
  if (state.matrix.rank() > 0) return place_of_matrices(state, parameter);
  if (state.run > 0) return place_of_runs(state, parameter);
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
  const Box& box = parameter.box();
  for (int d = box.shape.rank() - state.matrix.rank(); d < box.shape.rank(); ++d) {
    if (box.offset[static_cast<std::size_t>(d)] != 0) return false;
  }
  for (int d = 0; d < state.block.rank(); ++d) {
    if (parameter.box().offset[static_cast<std::size_t>(d)] % state.block[d] != 0) return false;
  }
  return true;
}

}  // namespace llmtrain::optim
