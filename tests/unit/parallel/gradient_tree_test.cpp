#include "lib/parallel/gradient_tree.hpp"

#include <cmath>

#include <doctest/doctest.h>

#include "kernels/elementwise.hpp"
#include "lib/base/error.hpp"
#include "lib/base/tree_sum.hpp"

namespace llmtrain::parallel {

namespace {

constexpr int kElements = 3;

// Numbers of which no two orders of a sum give the same.
double term(int sink, int micro_batch, int element) {
  return std::sin(1 + sink + 7 * micro_batch + 131 * element) * std::exp2(micro_batch % 5);
}

struct Model {
  Mesh mesh{{}, 0, self_factory()};
  Device device{make_cpu_memory(), 1 << 20};
  ParameterStore store{mesh};
  ParameterGroup *tied, *other;
  Tensor loss;

  Model() {
    tied = &store.declare({.name = "tied", .shape = {kElements}, .init = {}});
    other = &store.declare({.name = "other", .shape = {kElements}, .init = {}});
    store.allocate(device, {DType::f64, DType::f64, DType::f64}, true);
    loss = device.allocate({1}, DType::f64, Category::activations, "loss");
  }
  kernels::KernelCtx ctx() {
    return {.device = &device,
            .table = &kernels::cpu_reference_table(),
            .stream = device.compute_stream()};
  }
};

void add(const Tensor& sum, int sink, int micro_batch) {
  for (int e = 0; e < sum.numel(); ++e) {
    sum.view().as<double>()[e] += term(sink, micro_batch, e);
  }
}

// Of micro-batches [begin, end): workers one after the other, joined by the tree.
double expected(int sink, int begin, int end, int workers, int element) {
  std::vector<double> sums;
  const int each = (end - begin) / workers;
  for (int w = 0; w < workers; ++w) {
    double sum = 0;
    for (int m = 0; m < each; ++m) sum += term(sink, begin + w * each + m, element);
    sums.push_back(sum);
  }
  return tree_sum(sums);
}

void check_sum(const Tensor& sum, int sink, int micro_batches, int workers) {
  for (int e = 0; e < sum.numel(); ++e) {
    CHECK(sum.view().as<double>()[e] == expected(sink, 0, micro_batches, workers, e));
  }
}

}  // namespace

TEST_CASE("sums of micro-batches join by the tree, whatever other sinks are at") {
  for (const int workers : {1, 2, 8}) {
    CAPTURE(workers);
    Model model;
    GradientTree tree(model.device, model.store, workers, model.tied, model.loss);
    constexpr int kMicroBatches = 24;
    for (int step = 0; step < 2; ++step) {
      for (const ParameterGroup* group : {model.tied, model.other}) {
        kernels::launch(model.ctx(), kernels::Fill{.y = group->grad(), .value = 0});
      }
      kernels::launch(model.ctx(), kernels::Fill{.y = model.loss, .value = 0});
      tree.begin_step(model.ctx(), kMicroBatches);
      // Heads and losses of a pipeline's last stage are ahead of what its first stage adds.
      constexpr int kAhead = 5;
      for (int m = 0; m < kMicroBatches + kAhead; ++m) {
        if (m < kMicroBatches) {
          const auto sink = tree.sinks(m)->sink(model.ctx(), *model.tied, GradientPart::head);
          add(sink, 0, m);
          tree.before_loss(model.ctx(), m);
          add(model.loss, 3, m);
        }
        const int late = m - kAhead;
        if (late < 0) continue;
        add(tree.sinks(late)->sink(model.ctx(), *model.tied, GradientPart::body), 1, late);
        // A head of its own is no part of another sink.
        const GradientPart part = late % 2 == 0 ? GradientPart::body : GradientPart::head;
        add(tree.sinks(late)->sink(model.ctx(), *model.other, part), 2, late);
      }
      tree.finish(model.ctx());
      check_sum(tree.head_grad(), 0, kMicroBatches, workers);
      check_sum(model.tied->grad(), 1, kMicroBatches, workers);
      check_sum(model.other->grad(), 2, kMicroBatches, workers);
      check_sum(model.loss, 3, kMicroBatches, workers);
    }
  }
}

TEST_CASE("workers without a term count as zeros, and one that is complete takes no more") {
  Model model;
  GradientTree tree(model.device, model.store, 4, nullptr, model.loss);
  CHECK(tree.tied() == nullptr);
  kernels::launch(model.ctx(), kernels::Fill{.y = model.other->grad(), .value = 0});
  tree.begin_step(model.ctx(), 8);
  add(tree.sinks(2)->sink(model.ctx(), *model.other, GradientPart::body), 0, 2);
  add(tree.sinks(3)->sink(model.ctx(), *model.other, GradientPart::body), 0, 3);
  CHECK_THROWS_AS(tree.sinks(1)->sink(model.ctx(), *model.other, GradientPart::body),
                  InternalError);
  tree.finish(model.ctx());
  for (int e = 0; e < kElements; ++e) {
    CHECK(model.other->grad().view().as<double>()[e] == term(0, 2, e) + term(0, 3, e));
  }
  CHECK_THROWS_AS(tree.begin_step(model.ctx(), 6), InternalError);
  CHECK_THROWS_AS(GradientTree(model.device, model.store, 3, nullptr, model.loss), InternalError);
}

}  // namespace llmtrain::parallel
