#pragma once
/// ZeRO 2 and 3 (arXiv 1910.02054): gradients, and parameters, that are whole only while somebody
/// works with them. Between, each data rank has its slices (ParameterStore::slice), or keeps them
/// elsewhere.

#include <chrono>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "lib/autograd/tape.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/parallel/gradient_bucket.hpp"
#include "lib/parallel/parameter_gather.hpp"
#include "lib/parallel/travelling_sum.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// What is gathered and given back at a time: the embedding, a block, the head. A group may be in
/// several of them.
struct Unit {
  std::vector<ParameterGroup*> groups;
  /// Whether its backward reads its parameters, and whether its forward adds to its gradients.
  bool reads_on_way_back = true, writes_on_way_forth = false;
  /// Of the units that end the way forth and begin the way back: what the backward reads of them
  /// stays whole between the two.
  bool stays_until_way_back = false;
};

class ShardedUnits {
 public:
  /// Units of the model, in the order in which a forward pass goes through them.
  struct Range {
    int begin = 0, end = 0;
  };

  /// `shards` as the groups' parameters have them; gradients travel in `grad_reduce`, without it in
  /// their own type. All that is given outlives this.
  ShardedUnits(std::vector<Unit> units, const Shards& shards, const Mesh& mesh,
               std::optional<DType> grad_reduce)
      : units_(std::move(units)), mesh_(&mesh), shards_(shards), grad_reduce_(grad_reduce) {}

  /// Where slices are that are Parameter::copy_is_elsewhere(); before the first enter().
  void take_from(const ValuesElsewhere& elsewhere) { elsewhere_ = &elsewhere; }

  /// Around the operations of some units of a stage, which has those of `stage`. Their parameters
  /// are whole from the one to the other; meanwhile the next unit's travel. The tape of `ctx` does
  /// the same on the way back, where gradients are whole, too, until the last weight part; what was
  /// added to them then goes to the slices' owners. What is in the first and the last unit of a
  /// stage with a tape, a tied table, stays whole from the first to the last, and so does its
  /// gradient on the way back: each travels once. What Unit::stays_until_way_back names travels
  /// once, too. Collective over the data ranks.
  void enter(const OpCtx& ctx, Range units, Range stage);
  void leave(const OpCtx& ctx, Range units, Range stage);
  /// Awaits what is still under way to the slices' owners, and gives its memory back.
  void settle(const OpCtx& ctx);
  /// The same, but for the memory: gradients of slices are complete so far.
  void arrive(const OpCtx& ctx);
  /// How long enter(), and the walk back, have waited for what is read from elsewhere.
  double waited_seconds() const { return waited_.count(); }
  /// OpCtx::unwritten of what goes on between enter() and leave(), and on the way back.
  UnwrittenGradients& unwritten() { return unwritten_; }

 private:
  class WayBackBegin;
  class WayBackEnd;
  enum class Way : std::uint8_t { forth, back };
  struct State {
    int readers = 0, writers = 0;
    /// Micro-batches whose first unit adds to the gradient after the last one has.
    int writers_to_come = 0;
    bool gradient_is_open = false;
  };

  void gather(const OpCtx& ctx, Range units, Way way);
  void acquire(const OpCtx& ctx, Range units, Way way);
  void release(Range units, Way way);
  /// Behind their forward under a tape: what stays does so until the walk back leaves it.
  void release_but_what_stays(Range units);
  void drop(ParameterGroup& group, State& state);
  void open_gradients(const OpCtx& ctx, Range units, Way way);
  void reduce_gradients(const OpCtx& ctx, Range units);
  void reduce_alone(const OpCtx& ctx, const Parameter& parameter);
  bool stay(Range units) const;
  /// Groups of the first unit that are in the last one, too, where `units` begin a stage that has
  /// both.
  template <class Body>
  void for_tied(Range units, Range stage, const Body& body);
  /// Groups of units that read their parameters on this way; that add to gradients on it.
  template <class Body>
  void for_readers(Range units, Way way, const Body& body);
  template <class Body>
  void for_writers(Range units, Way way, const Body& body);

  Communicator& owners(const Parameter& p) const { return mesh_->owners(p.holders_of_data()); }

  std::vector<Unit> units_;
  const Mesh* mesh_;
  Shards shards_;
  std::optional<DType> grad_reduce_;
  const ValuesElsewhere* elsewhere_ = nullptr;
  std::map<ParameterGroup*, State> states_;
  UnwrittenGradients unwritten_;
  std::vector<ParameterGather> gathers_;
  std::chrono::duration<double> waited_{0};
  /// On their way to the owners, and the groups whose gradients' memory goes when they are there.
  std::vector<std::pair<const Parameter*, TravellingSum>> sums_;
  std::vector<GradientBucket> buckets_;
  std::vector<ParameterGroup*> leaving_;
};

}  // namespace llmtrain::parallel
