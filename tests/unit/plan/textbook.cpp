#include "tests/unit/plan/textbook.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "lib/parallel/schedule.hpp"

namespace llmtrain::test {

namespace {

using parallel::Action;
using parallel::ActionKind;
using L = TextbookLayout;

constexpr double kBytes = 4;                  // of a number in FP32
constexpr double kSumBytes = 8;               // of a loss and of a part of a norm
constexpr double kElementsPerNormSum = 1024;  // at least, in a part of a norm

// What a rank sends of the bytes of a gather or of an exchange; of a sum it is twice as much.
double others(double ranks) { return (ranks - 1) / ranks; }

// The part of the actions from the one kind to the other of each micro-batch.
struct Stretch {
  int stage;
  ActionKind from, to;
};

bool begins(const Stretch& stretch, const Action& action) {
  const bool is_backward = stretch.from == ActionKind::input_grad;
  return action.stage == stretch.stage &&
         (action.kind == stretch.from || (is_backward && action.kind == ActionKind::backward));
}

bool ends(const Stretch& stretch, const Action& action) {
  const bool is_backward = stretch.to != ActionKind::forward;
  return action.stage == stretch.stage &&
         (action.kind == stretch.to || (is_backward && action.kind == ActionKind::backward));
}

// What is whole while one of the stretches lasts is made so many times.
double times_made(const std::vector<Action>& actions, std::initializer_list<Stretch> stretches) {
  int open = 0, made = 0;
  for (const Action& action : actions) {
    for (const Stretch& s : stretches) {
      if (begins(s, action) && open++ == 0) ++made;
    }
    for (const Stretch& s : stretches) open -= ends(s, action);
  }
  return made;
}

class Textbook {
 public:
  Textbook(const L& layout, int tp_index, int pp_index);
  SentVolumes volumes() &&;

 private:
  void tensor_parallel();
  void partial_gradients();
  void pipeline();
  void sequences();
  void experts();
  void gradients_and_parameters();
  /// Elements of one rank, whose gradients are made whole, and which are gathered, so many times in
  /// a step where ZeRO divides them.
  void divided(double elements, double grads_made, double gathered, bool of_experts = false);
  void agreements();

  void add(Collective kind, const std::string& group, double bytes, double slack = 0) {
    SentVolume& volume = sent_[{kind, group}];
    volume.bytes += bytes;
    volume.slack += slack;
  }
  void all_reduce(const std::string& group, double ranks, double bytes) {
    add(Collective::all_reduce, group, 2 * others(ranks) * bytes);
  }
  int size(Axis axis) const { return l_.mesh[axis]; }
  bool has(int stage) const { return rank_of(stage) == pp_; }
  int rank_of(int stage) const;
  double blocks_of(int stage) const;
  bool shares_rows() const { return l_.mesh.tp_sequence_parallel && tp_ > 1; }
  double owners() const { return l_.zero == 0 ? 1 : data_ / l_.mesh.dp_replicate; }
  /// Elements of a rank: of a block without its experts, of these, and of the embedding.
  double block_elements() const;
  double expert_elements() const;
  double embedding_elements() const { return vocabulary_ * L::kHidden; }

  L l_;
  int pp_;
  double tp_, data_;
  int stages_;
  std::vector<Action> actions_;
  double q_, k_;        // columns of a rank's queries, and of its keys
  double vocabulary_;   // rows of a rank's embedding
  double blocks_ = 0;   // of a rank
  double rows_;         // of a micro-batch, of a rank along sp
  double activations_;  // their bytes
  bool first_, last_;
  SentVolumes sent_;
};

Textbook::Textbook(const L& layout, int tp_index, int pp_index)
    : l_(layout),
      pp_(pp_index),
      tp_(size(Axis::tp)),
      data_(size(Axis::dp) * size(Axis::sp)),
      stages_(size(Axis::pp) * l_.stages_per_rank) {
  q_ = L::kHeads / tp_ * L::kHeadDim;
  k_ = std::max(1.0, l_.kv_heads / tp_) * L::kHeadDim;
  const int ranks = size(Axis::tp);
  vocabulary_ = L::kVocabulary * (tp_index + 1) / ranks - L::kVocabulary * tp_index / ranks;
  for (int s = 0; s < stages_; ++s) blocks_ += has(s) ? blocks_of(s) : 0;
  rows_ = L::kSequences * L::kLength / size(Axis::sp);
  activations_ = rows_ * L::kHidden * kBytes;
  first_ = has(0);
  last_ = has(stages_ - 1);
  actions_ = parallel::find_schedule(l_.schedule)
                 .make({.num_ranks = size(Axis::pp),
                        .num_stages = stages_,
                        .num_micro_batches = l_.micro_batches})
                 .ranks[static_cast<std::size_t>(pp_)];
}

// Around, or forth and back (zero bubble V, arXiv 2401.10241).
int Textbook::rank_of(int stage) const {
  const int ranks = size(Axis::pp), turn = stage / ranks, place = stage % ranks;
  const bool is_v = l_.schedule == "zbv" || l_.schedule == "v_half" || l_.schedule == "dualpipev";
  return is_v && turn % 2 == 1 ? ranks - 1 - place : place;
}

double Textbook::blocks_of(int stage) const {
  return l_.blocks / stages_ + (stage < l_.blocks % stages_);
}

double Textbook::block_elements() const {
  const double attention = 2 * (q_ + k_) * L::kHidden, norms = 2 * L::kHidden;
  if (l_.experts > 0) return attention + norms + 2 * L::kHeadDim + l_.experts * L::kHidden;
  return attention + norms + 3 * L::kHidden * L::kIntermediate / tp_;
}

double Textbook::expert_elements() const {
  return 3.0 * l_.experts / l_.mesh.ep * L::kHidden * L::kExpertIntermediate / tp_;
}

// arXiv 1909.08053: two sums in a block's forward and two in its backward, one behind the embedding
// and one behind the head's backward. Computing a block again makes those of its forward again.
// arXiv 2205.05198: where ranks share rows a sum is a scatter and the other way's is a gather; what
// products need for their weights is gathered once more.
void Textbook::tensor_parallel() {
  if (tp_ == 1) return;
  const double again = l_.recomputes_blocks ? 2 : 0;
  const double sums = l_.micro_batches * (blocks_ * (4 + again) + first_ + last_);
  const double once = others(tp_) * activations_;
  if (shares_rows()) {
    add(Collective::reduce_scatter, "tp", sums * once);
    add(Collective::all_gather, "tp", (sums + l_.micro_batches * blocks_ * 2) * once);
  } else {
    all_reduce("tp", tp_, sums * activations_);
  }
  // Of each row the largest logit, the sum of exponentials, and the target's logit.
  if (last_) {
    add(Collective::all_gather, "tp", l_.micro_batches * others(tp_) * tp_ * rows_ * 3 * kBytes);
  }
}

// Once a step, of what ZeRO divides the owner's slices.
void Textbook::partial_gradients() {
  if (tp_ > 1) {
    double elements = l_.experts > 0 ? blocks_ * (2 * L::kHeadDim + l_.experts * L::kHidden) : 0;
    if (shares_rows()) elements += (2 * blocks_ + last_) * L::kHidden;
    all_reduce("tp", tp_, elements * kBytes / owners());
    const double same_head = tp_ / l_.kv_heads;
    if (same_head > 1) {
      all_reduce("tp replicas", same_head, blocks_ * 2 * L::kHidden * k_ * kBytes / owners());
    }
  }
  const bool two_tables = l_.tied && rank_of(0) != rank_of(stages_ - 1);
  if (two_tables && (first_ || last_)) {
    all_reduce("pp holders", 2, embedding_elements() * kBytes / owners());
  }
}

// arXiv 2104.04473: where the next stage is another rank's, an activation goes there, and its
// gradient comes back.
void Textbook::pipeline() {
  if (size(Axis::pp) == 1) return;
  const double message = activations_ / (shares_rows() ? tp_ : 1);
  for (int s = 0; s + 1 < stages_; ++s) {
    if (rank_of(s) == rank_of(s + 1)) continue;
    add(Collective::send, "pp", l_.micro_batches * message * (has(s) + has(s + 1)));
  }
}

// Neighbours exchange rows for heads (arXiv 2309.14509): q, k, v and the output of attention, and
// their gradients; of fewer key/value heads than ranks each rank gets a whole one. Groups of them
// gather keys and values, in the backward again, and sum their gradients; or pass them around
// (arXiv 2310.01889), in the backward with the gradients' sums behind them.
void Textbook::sequences() {
  const bool all_share_heads = l_.mesh.sp_algo == SequenceSharing::ulysses;
  const double u = all_share_heads ? size(Axis::sp) : l_.mesh.sp_ulysses, n = size(Axis::sp) / u;
  const double passes = blocks_ * l_.micro_batches, forwards = l_.recomputes_blocks ? 2 : 1;
  double k = k_;
  if (u > 1) {
    k = std::max(k_, u * L::kHeadDim);
    add(Collective::all_to_all, n > 1 ? "sp heads" : "sp",
        passes * (forwards + 1) * others(u) * rows_ * 2 * (q_ + k) * kBytes);
  }
  if (n == 1) return;
  const std::string group = u > 1 ? "sp rows" : "sp";
  const double keys_and_values = L::kSequences * L::kLength * 2 * k / u * kBytes;
  if (l_.mesh.sp_algo == SequenceSharing::ring) {
    const double around = (n - 1) * keys_and_values / n;
    add(Collective::send, group, passes * (forwards + 2) * around);
  } else {
    add(Collective::all_gather, group, passes * (forwards + 1) * others(n) * keys_and_values);
    add(Collective::reduce_scatter, group, passes * others(n) * keys_and_values);
  }
}

// arXiv 2006.16668: the rows of choices go to their experts and come back, and so do gradients; a
// choice's weight goes there, and its gradient back. Before that each rank tells where the rows of
// each expert begin and end, and how many rows it has.
void Textbook::experts() {
  const double n = l_.mesh.ep, forwards = l_.recomputes_blocks ? 2 : 1;
  const double passes = blocks_ * l_.micro_batches, choices = rows_ * L::kExpertsPerToken;
  if (l_.experts > 0) {  // a sequence's choices of each expert, of which its balance loss is made
    all_reduce("sp", size(Axis::sp), passes * L::kSequences * l_.experts * kBytes);
  }
  if (n == 1) return;
  add(Collective::all_to_all, "experts",
      passes * (forwards + 1) * others(n) * choices * (2 * L::kHidden + 1) * kBytes);
  add(Collective::all_gather, "experts",
      passes * forwards * (n - 1) * (l_.experts + 2) * sizeof(std::int64_t));
}

// arXiv 1910.02054: gradients are summed, or each to its owner, and parameters gathered. Of groups
// with all slices each (arXiv 2304.11277) owners of the same slice sum up what their groups have.
void Textbook::divided(double elements, double grads_made, double gathered, bool of_experts) {
  const double holders = data_ / (of_experts ? l_.mesh.ep : 1), sets = l_.mesh.dp_replicate;
  const double n = holders / sets, bytes = elements * kBytes;
  const bool own = of_experts && l_.mesh.ep > 1;
  if (l_.zero == 0 || n == 1) {
    return all_reduce(own ? "same experts" : "dp*sp", holders, bytes);
  }
  const std::string group = own ? "expert owners" : sets > 1 ? "owners" : "dp*sp";
  add(Collective::reduce_scatter, group, (l_.zero > 1 ? grads_made : 1) * others(n) * bytes);
  add(Collective::all_gather, group, (l_.zero > 2 ? gathered : 1) * others(n) * bytes);
  all_reduce("replicas", sets, bytes / n);
}

// From ZeRO 2 on a gradient is whole while a backward adds to it (the head's from the forward on,
// which makes it), and from ZeRO 3 on a parameter while one of the two ways needs it: a look-up's
// backward does not, nor does that of the head; and what the way back begins with, the last block
// and the final norm, stays.
void Textbook::gradients_and_parameters() {
  constexpr auto F = ActionKind::forward, I = ActionKind::input_grad, W = ActionKind::weight_grad;
  const int end = stages_ - 1;
  const Stretch look_up{0, F, F}, look_up_grad{0, I, W}, head{end, F, F}, head_grad{end, F, W};
  const Stretch stays{end, F, I}, last_grad{end, I, W};
  for (int s = 0; s < stages_; ++s) {
    if (!has(s)) continue;
    const double made = times_made(actions_, {{s, I, W}});
    const double gathered = times_made(actions_, {{s, F, F}, {s, I, I}});
    const double kept = s == end ? 1 : 0;
    for (const bool of_experts : {false, true}) {
      const double block = of_experts ? expert_elements() : block_elements();
      divided((blocks_of(s) - kept) * block, made, gathered, of_experts);
      divided(kept * block, made, times_made(actions_, {stays}), of_experts);
    }
  }
  if (last_) divided(L::kHidden, times_made(actions_, {last_grad}), times_made(actions_, {stays}));
  const double table = embedding_elements();
  if (l_.tied && stages_ == 1) {  // whole from the look-up to the head, and on the way back
    divided(table, times_made(actions_, {head_grad}), times_made(actions_, {head}));
  } else if (l_.tied && first_ && last_) {
    divided(table, times_made(actions_, {look_up_grad, head_grad}),
            times_made(actions_, {look_up, head}));
  } else {
    divided(first_ * table, times_made(actions_, {look_up_grad}), times_made(actions_, {look_up}));
    divided(last_ * table, times_made(actions_, {head_grad}), times_made(actions_, {head}));
  }
}

// The step's loss, its norm as a sum of each parameter's, of which owners of slices have more and
// smaller ones, and what routers report.
void Textbook::agreements() {
  const double per_block = l_.experts > 0 ? 12 : 9;
  const double parameters = l_.blocks * per_block + (l_.tied ? 2 : 3);
  const double pp = size(Axis::pp);
  all_reduce("dp*sp", data_, kSumBytes);
  all_reduce("pp", pp, kSumBytes);
  all_reduce("tp*pp", tp_ * pp, parameters * kSumBytes);
  const double routers = l_.experts > 0 ? l_.blocks * (l_.experts * kBytes + 2 * kSumBytes) : 0;
  all_reduce("dp*sp", data_, routers);
  all_reduce("pp", pp, routers);
  if (l_.zero == 0) {
    if (l_.mesh.ep > 1) all_reduce("experts", l_.mesh.ep, parameters * kSumBytes);
    return;
  }
  const double elements =
      blocks_ * (block_elements() + expert_elements()) + (first_ + last_) * embedding_elements();
  add(Collective::all_reduce, l_.mesh.dp_replicate > 1 ? "owners" : "dp*sp",
      2 * others(owners()) * parameters * kSumBytes,
      2 * elements / kElementsPerNormSum * kSumBytes);
}

SentVolumes Textbook::volumes() && {
  tensor_parallel();
  partial_gradients();
  pipeline();
  sequences();
  experts();
  gradients_and_parameters();
  agreements();
  std::erase_if(sent_, [](const auto& entry) { return entry.second.bytes == 0; });
  return std::move(sent_);
}

}  // namespace

SentVolumes textbook_volumes(const TextbookLayout& layout, int tp_index, int pp_index) {
  return Textbook(layout, tp_index, pp_index).volumes();
}

}  // namespace llmtrain::test
