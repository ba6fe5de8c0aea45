#pragma once
/// A small tape: operations recorded by a forward pass and walked back, with weight gradients that
/// may be deferred.

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/autograd/op_ctx.hpp"
#include "lib/tensor/tensor.hpp"

namespace llmtrain {

class Rematerial;

/// A value of the forward pass: its tensor, its number on the tape (-1: no gradient wanted), and,
/// when a policy decided so, the way to compute it again instead of keeping it.
struct Var {
  Tensor tensor;
  int id = -1;
  std::shared_ptr<Rematerial> source;

  bool needs_grad() const { return id >= 0; }
};

/// Which half of the backward reads a saved tensor; it is freed right after the last such half.
enum class Part : std::uint8_t { input, weight };

/// A value that is computed again on demand: once for all its users, freed with the last of them.
class Rematerial {
 public:
  explicit Rematerial(std::function<Tensor(const OpCtx&)> compute) : compute_(std::move(compute)) {}
  Tensor get(const OpCtx& ctx);

 private:
  friend class Saved;
  std::function<Tensor(const OpCtx&)> compute_;
  Tensor cached_;
  int users_ = 0;
};

/// The way to compute a value again that `make` makes of `x`, which is kept, or is itself computed
/// again.
std::shared_ptr<Rematerial> made_again(const Var& x,
                                       std::function<Tensor(const OpCtx&, const Tensor&)> make);

class Node;

/// A tensor that a node keeps for its backward. Member of a Node, freed by the tape after `last`.
class Saved {
 public:
  Saved(Node* owner, Part last);
  ~Saved() { release(); }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  /// Keeps the tensor, or only the way to compute it if the value has one.
  void set(const Var& value);
  void set(Tensor tensor);
  bool defined() const { return tensor_.defined() || source_ != nullptr; }
  Tensor get(const OpCtx& ctx) const;
  void release();
  Part last() const { return last_; }

 private:
  friend class Tape;
  Part last_;
  Tensor tensor_;
  std::shared_ptr<Rematerial> source_;
};

/// A contiguous tensor that nodes have saved and nobody else holds.
struct Leaving {
  Tensor tensor;
  /// The first part of a backward that reads it: of Part::weight no input part does.
  Part first = Part::input;
};

/// Where saved tensors are between the pass forth and the walk back.
class TensorKeeper {
 public:
  virtual ~TensorKeeper() = default;
  /// Whether those of a node go there.
  virtual bool takes(std::string_view op) const = 0;
  /// Takes what nodes one behind the other have saved, which may be nothing. Of each tensor, in
  /// their order, a way back, which is gone once, by Tape::backward or run_weight_grads, or never.
  virtual std::vector<std::function<Tensor(const OpCtx&)>> put_away(
      const OpCtx& ctx, std::vector<Leaving> tensors) = 0;
};

/// One recorded operation. Derived classes hold their Saved tensors, options and parameters.
class Node {
 public:
  explicit Node(std::string_view op) : op_(op) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string_view op() const { return op_; }

  /// From the gradients of the outputs (undefined where none arrived) to those of the inputs, one
  /// per input; undefined for inputs without need. May also write small weight gradients (vectors),
  /// and keeps in Saved{Part::weight} what weight_grad() needs.
  virtual std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) = 0;
  /// True if input_grad() adds to what take_so_far() gives, which spares an addition.
  virtual bool adds_to_gradient() const { return false; }
  /// True if weight_grad() has work.
  virtual bool has_weight_grad() const { return false; }
  /// Adds into the parameters' gradient sinks. Needs no weights.
  virtual void weight_grad(const OpCtx&) {}

  bool wants(int input) const { return inputs_[static_cast<std::size_t>(input)] >= 0; }

 protected:
  /// In input_grad() of a node that adds_to_gradient(): the gradient of its first input by users
  /// that were recorded later; undefined if there are none.
  Tensor take_so_far() { return std::move(so_far_); }

 private:
  friend class Tape;
  friend class Saved;
  void release(Part part);

  std::string_view op_;
  std::vector<int> inputs_;
  std::vector<int> outputs_;
  std::vector<Saved*> saved_;
  Tensor so_far_;
};

/// Forward pass of one (stage, micro-batch): born at F, walked back at I, gone after W.
class Tape {
 public:
  /// A value whose gradient the caller will ask for.
  Var leaf(Tensor tensor);

  /// Records a node; returns one Var per output tensor.
  std::vector<Var> record(std::unique_ptr<Node> node, std::initializer_list<const Var*> inputs,
                          std::initializer_list<Tensor> outputs);
  /// The common case of one output.
  Var record_one(std::unique_ptr<Node> node, std::initializer_list<const Var*> inputs,
                 Tensor output);

  /// Records a node without values, at which the walk back stops in its place.
  void record_stop(std::unique_ptr<Node> node);

  /// Sets the gradient from which the walk starts.
  void seed(const Var& value, Tensor gradient);
  /// Marks a value without gradient (the loss) as the end of the walk.
  void seed_root(const Var& value);

  /// Input gradients of all nodes, last recorded first. Gradients of a value used more than once
  /// add in that order. With `deferred` the weight parts wait for run_weight_grads().
  void backward(const OpCtx& ctx, WeightGrads when);
  bool has_deferred() const { return !deferred_.empty(); }
  /// Recorded so far and not walked back.
  std::size_t num_nodes() const { return nodes_.size(); }
  /// Of what the nodes from `first` on have saved, all goes to `keeper` that nobody else holds, and
  /// of which it takes each node's. It is there again as soon as one of them asks for it, until the
  /// last of them is done with it.
  void put_away(const OpCtx& ctx, std::size_t first, TensorKeeper& keeper);
  /// The deferred weight parts, in the order in which backward() met them.
  void run_weight_grads(const OpCtx& ctx);

  /// Gradient of a leaf after backward(); undefined if none arrived.
  Tensor take_gradient(const Var& leaf);

 private:
  int new_value();
  void accumulate(const OpCtx& ctx, int value, Tensor gradient);

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> deferred_;
  std::vector<Tensor> gradients_;
  std::vector<bool> roots_;
};

/// Runs `body` keeping only its input; the backward runs it again under a tape of its own. Without
/// a tape in `ctx` it is just body(ctx, input). `body` must be pure and outlive the tape.
Var recompute_segment(const OpCtx& ctx, const Var& input,
                      const std::function<Var(const OpCtx&, const Var&)>& body);

}  // namespace llmtrain
