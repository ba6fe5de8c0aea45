#include "lib/autograd/tape.hpp"

#include <map>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

Tensor Rematerial::get(const OpCtx& ctx) {
  if (!cached_.defined()) {
    OpCtx plain = ctx;
    plain.tape = nullptr;
    plain.watch = nullptr;
    cached_ = compute_(plain);
  }
  return cached_;
}

std::shared_ptr<Rematerial> made_again(const Var& x,
                                       std::function<Tensor(const OpCtx&, const Tensor&)> make) {
  const Tensor kept = x.source == nullptr ? x.tensor : Tensor();
  return std::make_shared<Rematerial>(
      [kept, source = x.source, make = std::move(make)](const OpCtx& again) {
        return make(again, source == nullptr ? kept : source->get(again));
      });
}

Saved::Saved(Node* owner, Part last) : last_(last) { owner->saved_.push_back(this); }

void Saved::set(const Var& value) {
  if (value.source == nullptr) {
    tensor_ = value.tensor;
    return;
  }
  source_ = value.source;
  ++source_->users_;
}

void Saved::set(Tensor tensor) { tensor_ = std::move(tensor); }

Tensor Saved::get(const OpCtx& ctx) const {
  return source_ != nullptr ? source_->get(ctx) : tensor_;
}

void Saved::release() {
  tensor_.reset();
  if (source_ == nullptr) return;
  if (--source_->users_ == 0) source_->cached_.reset();
  source_.reset();
}

void Node::release(Part part) {
  for (Saved* saved : saved_) {
    if (part == Part::weight || saved->last() == Part::input) saved->release();
  }
}

int Tape::new_value() {
  gradients_.emplace_back();
  roots_.push_back(false);
  return static_cast<int>(gradients_.size()) - 1;
}

Var Tape::leaf(Tensor tensor) { return {std::move(tensor), new_value(), nullptr}; }

std::vector<Var> Tape::record(std::unique_ptr<Node> node, std::initializer_list<const Var*> inputs,
                              std::initializer_list<Tensor> outputs) {
  for (const Var* input : inputs) node->inputs_.push_back(input->id);
  std::vector<Var> results;
  for (const Tensor& output : outputs) {
    results.push_back({output, new_value(), nullptr});
    node->outputs_.push_back(results.back().id);
  }
  nodes_.push_back(std::move(node));
  return results;
}

Var Tape::record_one(std::unique_ptr<Node> node, std::initializer_list<const Var*> inputs,
                     Tensor output) {
  return std::move(record(std::move(node), inputs, {std::move(output)}).front());
}

void Tape::record_stop(std::unique_ptr<Node> node) {
  seed_root(record_one(std::move(node), {}, Tensor()));
}

void Tape::seed(const Var& value, Tensor gradient) {
  gradients_[static_cast<std::size_t>(value.id)] = std::move(gradient);
}

void Tape::seed_root(const Var& value) { roots_[static_cast<std::size_t>(value.id)] = true; }

void Tape::accumulate(const OpCtx& ctx, int value, Tensor gradient) {
  Tensor& sum = gradients_[static_cast<std::size_t>(value)];
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  Tensor target = sum.unique() ? sum : ctx.allocate(sum.shape(), sum.dtype(), "gradient fan-out");
  ctx.launch(kernels::Add{.a = sum, .b = gradient, .y = target});
  sum = std::move(target);
}

namespace {

struct Holders {
  std::vector<Saved*> saved;
  bool all_alike = true, all_taken = true;
  Part first = Part::weight;  // that reads it
};

bool is_same(const View& a, const View& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape &&
         a.row_stride == b.row_stride;
}

}  // namespace

void Tape::put_away(const OpCtx& ctx, std::size_t first, TensorKeeper& keeper) {
  std::vector<Holders> all;  // of each storage, in the order of the nodes
  std::map<const Storage*, std::size_t> known;
  for (std::size_t n = first; n < nodes_.size(); ++n) {
    for (Saved* saved : nodes_[n]->saved_) {
      if (!saved->tensor_.defined()) continue;
      const auto [at, is_new] = known.emplace(&saved->tensor_.storage(), all.size());
      if (is_new) all.emplace_back();
      Holders& of = all[at->second];
      of.saved.push_back(saved);
      of.all_alike = of.all_alike && is_same(saved->tensor_, of.saved.front()->tensor_);
      of.all_taken = of.all_taken && keeper.takes(nodes_[n]->op());
      if (saved->last() == Part::input) of.first = Part::input;
    }
  }
  std::vector<Leaving> leaving;
  std::vector<const Holders*> left;
  for (const Holders& of : all) {
    if (!of.all_alike || !of.all_taken) continue;
    Tensor tensor = of.saved.front()->tensor_;
    for (Saved* saved : of.saved) saved->tensor_.reset();
    const bool is_free = tensor.unique() && tensor.view().contiguous() && tensor.numel() > 0;
    if (is_free) {
      leaving.push_back({std::move(tensor), of.first});
      left.push_back(&of);
    } else {
      for (Saved* saved : of.saved) saved->set(tensor);
    }
  }
  auto ways_back = keeper.put_away(ctx, std::move(leaving));
  require(ways_back.size() == left.size(), "{} ways back of {} tensors", ways_back.size(),
          left.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto source = std::make_shared<Rematerial>(std::move(ways_back[i]));
    for (Saved* saved : left[i]->saved) saved->set(Var{Tensor(), -1, source});
  }
}

void Tape::backward(const OpCtx& outer, WeightGrads when) {
  OpCtx ctx = outer;
  ctx.weight_grads = when;
  while (!nodes_.empty()) {
    std::unique_ptr<Node> node = std::move(nodes_.back());
    nodes_.pop_back();
    std::vector<Tensor> dys;
    bool reached = false;
    for (const int output : node->outputs_) {
      const auto i = static_cast<std::size_t>(output);
      reached = reached || gradients_[i].defined() || roots_[i];
      dys.push_back(std::move(gradients_[i]));
    }
    if (!reached) continue;
    if (node->adds_to_gradient() && node->wants(0)) {
      node->so_far_ = std::move(gradients_[static_cast<std::size_t>(node->inputs_[0])]);
    }
    std::vector<Tensor> dxs = node->input_grad(ctx, dys);
    dys.clear();
    require(dxs.size() == node->inputs_.size(), "{}: {} input gradients for {} inputs", node->op(),
            dxs.size(), node->inputs_.size());
    node->release(Part::input);
    for (std::size_t i = 0; i < dxs.size(); ++i) {
      if (node->inputs_[i] >= 0 && dxs[i].defined()) {
        accumulate(ctx, node->inputs_[i], std::move(dxs[i]));
      }
    }
    if (!node->has_weight_grad()) continue;
    if (when == WeightGrads::now) {
      node->weight_grad(ctx);
    } else {
      deferred_.push_back(std::move(node));
    }
  }
}

void Tape::run_weight_grads(const OpCtx& ctx) {
  for (auto& node : deferred_) {
    node->weight_grad(ctx);
    node.reset();
  }
  deferred_.clear();
}

Tensor Tape::take_gradient(const Var& leaf) {
  return std::move(gradients_[static_cast<std::size_t>(leaf.id)]);
}

namespace {

class SegmentNode final : public Node {
 public:
  SegmentNode(const Var& input, std::function<Var(const OpCtx&, const Var&)> body)
      : Node("recompute_segment"), body_(std::move(body)) {
    input_.set(input);
  }

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    OpCtx again = ctx;
    again.tape = &tape_;
    again.watch = nullptr;
    const Var input = tape_.leaf(input_.get(ctx));
    const Var output = body_(again, input);
    tape_.seed(output, std::move(dys[0]));
    tape_.backward(again, ctx.weight_grads);
    return {tape_.take_gradient(input)};
  }
  bool has_weight_grad() const override { return tape_.has_deferred(); }
  void weight_grad(const OpCtx& ctx) override { tape_.run_weight_grads(ctx); }

 private:
  std::function<Var(const OpCtx&, const Var&)> body_;
  Saved input_{this, Part::input};
  Tape tape_;
};

}  // namespace

Var recompute_segment(const OpCtx& ctx, const Var& input,
                      const std::function<Var(const OpCtx&, const Var&)>& body) {
  if (ctx.tape == nullptr) return body(ctx, input);
  OpCtx plain = ctx;
  plain.tape = nullptr;
  const Var output = body(plain, {input.tensor, -1, nullptr});
  return ctx.tape->record_one(std::make_unique<SegmentNode>(input, body), {&input}, output.tensor);
}

}  // namespace llmtrain
