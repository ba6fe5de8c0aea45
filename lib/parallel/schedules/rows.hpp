#pragma once
/// The rows of the table of schedules, one per source file of the same name (1F1B in
/// one_forward_one_backward.cpp), and what several share.

#include <utility>

#include "lib/parallel/schedule.hpp"

namespace llmtrain::parallel::rows {

ScheduleRow gpipe();
ScheduleRow one_forward_one_backward();
ScheduleRow eager_1f1b();
ScheduleRow interleaved_1f1b();
ScheduleRow zb_h1();
ScheduleRow zbv();
ScheduleRow v_half();
ScheduleRow dualpipev();

/// Writes one rank's list: each stage of the rank counts its own micro-batches, kind by kind.
/// Chunk c is the c-th stage of the rank.
class RankWriter {
 public:
  RankWriter(const ScheduleShape& shape, StagePlacement placement, int rank);

  void forward(int chunk);
  void backward(int chunk);
  void input_grad(int chunk);
  void weight_grad(int chunk);
  /// F of one chunk and B of the other, which may run side by side.
  void forward_beside_backward(int forward_chunk, int backward_chunk);
  /// W of the I that has waited longest; there must be one.
  void oldest_weight_grad();

  int stage(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].stage; }
  int forwards(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].forwards; }
  int input_grads(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)].input_grads; }
  /// Chunk of the I that has waited longest for its W, or -1.
  int oldest_waiting() const {
    return next_waiting_ < waiting_.size() ? waiting_[next_waiting_] : -1;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Chunk {
    int stage = 0;
    int forwards = 0, input_grads = 0, weight_grads = 0;
  };
  Chunk& at(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }

  std::vector<Chunk> chunks_;
  std::vector<Action> actions_;
  std::vector<int> waiting_;  // chunks of the I whose W is to come, oldest first
  std::size_t next_waiting_ = 0;
};

/// One forward, one backward, behind so many forwards of each rank.
std::vector<std::vector<Action>> behind_warm_up(const ScheduleShape& shape,
                                                int (*warm_up)(const ScheduleShape&, int rank));

}  // namespace llmtrain::parallel::rows
