#pragma once
/// Where the slices of small parameters lie in one message.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// What a message of several tensors is called.
std::string message_site(std::string_view first, std::size_t tensors);

/// What takes no longer than a few first bytes on any link: such tensors of a unit travel together,
/// and larger ones from where they are.
inline bool travels_with_others(const Tensor& tensor) {
  return tensor.view().bytes() <= std::uint64_t{1} << 18;
}

/// The slices of an owner lie one behind another, and owners' behind those of the owners before
/// them, so that each has one part of the message.
struct SliceLayout {
  struct Place {
    const Parameter* parameter;
    int owner;
    ParameterSlice of_box;
    std::int64_t begin;  // in the message
  };
  std::vector<Place> places;
  std::vector<std::int64_t> counts;  // elements of each owner
  std::int64_t own_begin = 0, own_count = 0, elements = 0;
  std::string site;

  /// Of parameters that the same `owners` share, as rank `own` of them has them.
  SliceLayout(std::span<const Parameter* const> parameters, int owners, int own);
};

}  // namespace llmtrain::parallel
