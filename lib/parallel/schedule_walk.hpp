#pragma once
/// Who waits for whom in a schedule, and the one way to go through all ranks in such an order.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/parallel/schedule.hpp"

namespace llmtrain::parallel {

/// An action: schedule.ranks[rank][index].
struct Position {
  int rank = -1, index = -1;

  bool exists() const { return rank >= 0; }
  bool operator==(const Position&) const = default;
};

inline const Action& action_at(const Schedule& schedule, Position at) {
  return schedule.ranks[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.index)];
}

/// The tensors that actions hand on: F(s) reads the activation of F(s - 1); I or B (s) reads that
/// of F(s) and the gradient that I or B (s + 1) makes; W(s) reads what I(s) kept.
class DataFlow {
 public:
  /// Stages and micro-batches of all actions must lie within the shape. Of an action that appears
  /// twice the first counts.
  explicit DataFlow(const Schedule& schedule);

  /// What an action waits for: up to two actions, by count; one that is nowhere in the schedule has
  /// no rank.
  struct Inputs {
    std::array<Position, 2> from;
    int count = 0;

    std::span<const Position> all() const { return {from.data(), static_cast<std::size_t>(count)}; }
  };
  Inputs inputs(const Action& action) const;

 private:
  std::size_t cell(int stage, int micro_batch) const;

  ScheduleShape shape_;
  std::vector<Position> forwards_, gradients_;  // [stage, micro-batch]
};

/// Whether an F and the B behind it (Action::overlaps_next) are begun together, when the inputs of
/// both are there.
enum class Pairs : std::uint8_t { apart, together };

/// Visits every action once, in the ranks' order and after all that it waits for, as far as that
/// goes. Returns the number of visited actions of each rank: all of them when no rank is stuck.
std::vector<std::size_t> walk(const Schedule& schedule, const DataFlow& flow, Pairs pairs,
                              const std::function<void(Position)>& visit);

/// When each action begins and ends if messages take no time and actions take the shape's costs;
/// [rank][index]. InternalError when a rank is stuck.
struct Times {
  std::vector<std::vector<double>> begin, end;

  /// The end of the last action.
  double last() const;
};
Times times_without_messages(const Schedule& schedule, const DataFlow& flow);

}  // namespace llmtrain::parallel
