#pragma once
/// What one rank sends, topic by topic.

#include <initializer_list>
#include <string_view>

#include "lib/parallel/schedule.hpp"
#include "tests/support/textbook/tensors.hpp"

namespace llmtrain::test {

/// What a rank sends of the bytes of a gather or of an exchange; of a sum it is twice as much.
inline double others(double ranks) { return (ranks - 1) / ranks; }

/// Muon, and those that run Adam in a subspace of each matrix.
inline bool needs_whole_matrices(std::string_view optimizer) {
  return optimizer == "muon" || optimizer == "galore" || optimizer == "ldadamw" ||
         optimizer == "q_galore";
}

class TextbookRank {
 public:
  TextbookRank(const TextbookRun& run, int tp_index, int pp_index);
  SentVolumes volumes() &&;

 private:
  // tensor_parallel.cpp
  void tensor_parallel();
  void partial_gradients();
  void pipeline();
  // sequences.cpp
  void sequences();
  // experts.cpp
  void experts();
  void choices_of_sequences(double passes, double ways_forth);
  double rows_for_each() const;
  /// Of its choices, those that one expert of a sequence has room for; else all.
  double capacity() const;
  // data_parallel.cpp
  void gradients_and_parameters();
  /// How often in a step, where ZeRO divides them, gradients are made whole and parameters
  /// gathered.
  struct Times {
    double grads_made = 0, gathered = 0;
  };
  Times times_of(const TextbookTensor& tensor) const;
  Times times_of_block(int block) const;
  void divided(const TextbookTensor& tensor, const Times& times);
  // optimizers.cpp
  void optimizer();
  void orthogonal_steps(const TextbookTensor& tensor);
  void factored_moments(const TextbookTensor& tensor);
  // agreements.cpp
  void agreements();
  double norm_sums() const;

  void add(Collective kind, const std::string& group, double bytes) {
    sent_[{kind, group}] += bytes;
  }
  void all_reduce(const std::string& group, double ranks, double bytes) {
    add(Collective::all_reduce, group, 2 * others(ranks) * bytes);
  }
  void all_gather(const std::string& group, double ranks, double bytes) {
    add(Collective::all_gather, group, others(ranks) * bytes);
  }

  const models::DecoderSpec& spec() const { return run_.options.model; }
  const MeshShape& mesh() const { return run_.mesh; }
  int size(Axis axis) const { return run_.mesh[axis]; }
  bool shares_rows() const { return mesh().tp_sequence_parallel && tp_ > 1; }
  int rank_of(int stage) const;
  bool has(int stage) const { return rank_of(stage) == pp_; }
  int first_block(int stage) const;
  int stage_of_block(int block) const;
  bool has_block(int block) const { return has(stage_of_block(block)); }
  bool has_tensor(const TextbookTensor& tensor) const;
  /// Of a block, which is computed once more for its backward or not.
  bool is_again(int block) const { return run_.options.recompute.block(block).whole; }
  double forwards(int block) const { return is_again(block) ? 2 : 1; }
  double expert_layers() const { return static_cast<double>(spec().num_expert_layers()); }
  /// That hold the same of a tensor, and of these those that divide it with ZeRO.
  double holders(bool of_experts) const { return data_ / (of_experts ? mesh().ep : 1); }
  double owners(bool of_experts = false) const {
    return run_.options.zero == 0 ? 1 : holders(of_experts) / mesh().dp_replicate;
  }

  // The part of the actions from the one kind to the other of each micro-batch.
  struct Stretch {
    int stage;
    parallel::ActionKind from, to;
  };
  static bool begins(const Stretch& stretch, const parallel::Action& action);
  static bool ends(const Stretch& stretch, const parallel::Action& action);
  /// What is whole while one of the stretches lasts is made so many times.
  double times_made(std::initializer_list<Stretch> stretches) const;

  TextbookRun run_;
  int pp_;
  double tp_, data_;
  std::string schedule_;
  int blocks_, stages_;
  std::vector<parallel::Action> actions_;
  std::vector<TextbookTensor> tensors_;
  double micro_batches_, sequences_, length_;
  double rows_;          // of a micro-batch, of a rank along sp
  double bytes_, wide_;  // of a number, and of one of statistics and gradients
  double travel_;        // of a gradient's that is summed over data ranks
  double activations_;   // bytes of a micro-batch's rows
  bool first_, last_;
  SentVolumes sent_;
};

}  // namespace llmtrain::test
