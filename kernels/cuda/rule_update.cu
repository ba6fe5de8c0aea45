// Updates by the element-wise rules: one pass over memory, with the operations of
// kernels/update_rules.hpp.
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// One parameter of a list, with states of S.
template <class Rule, class T, class S>
struct RuleRow {
  Masters<T> masters;
  const T* gradient;
  RuleInStep<Rule, T> rule;
  S* states[kRoomForStatesOf<Rule>];
  StateRounding rounding;

  __device__ RuleRow(const RuleUpdate::Row& row, DType type_of_copies,
                     const RuleInStep<Rule, T>& in_step)
      : masters(row, type_of_copies),
        gradient(static_cast<const T*>(row.gradient)),
        rule(in_step),
        rounding(row.state_rounding) {
    for (int k = 0; k < kStatesOf<Rule>; ++k) states[k] = static_cast<S*>(row.states[k]);
  }

  template <int V>
  __device__ void update(std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    Pack<T, V> packs[kRoomForStatesOf<Rule>];
    for (int k = 0; k < kStatesOf<Rule>; ++k) packs[k] = load_state<T, V>(states[k], i);
    for (int e = 0; e < V; ++e) {
      T of_element[kRoomForStatesOf<Rule>];
      for (int k = 0; k < kStatesOf<Rule>; ++k) of_element[k] = packs[k].x[e];
      ps.x[e] = rule.apply(ps.x[e], gs.x[e], of_element);
      for (int k = 0; k < kStatesOf<Rule>; ++k) packs[k].x[e] = of_element[k];
    }
#pragma unroll  // so that packs stay in registers
    for (int k = 0; k < kStatesOf<Rule>; ++k) {
      store_state(states[k], i, packs[k], rounding, k, rule.update);
    }
    masters.store(i, ps, rule.update);
  }
};

/// A thread block per chunk.
template <class Rule, class T, class S>
__global__ void __launch_bounds__(kMapThreads)
    rule_chunks(List<RuleUpdate::Row> list, Rule rule, WeightDecay decay,
                const UpdateDecision* decision, DType type_of_copies) {
  if (decision->apply == 0) return;
  const RuleUpdate::Row& row = list.row_at(blockIdx.x);
  const RuleInStep<Rule, T> in_step(rule, decay, row.lr_scale, row.weight_decay, *decision);
  bool packs = takes_packs<T>(row, type_of_copies);
  for (int k = 0; k < kStatesOf<Rule>; ++k) {
    packs = packs && lies_at(row.states[k], kPack<T> * sizeof(S));
  }
  update_chunk<T>(RuleRow<Rule, T, S>(row, type_of_copies, in_step), row.place, packs);
}

void rule_update(const KernelCtx& ctx, const RuleUpdate& op, const View&) {
  const List<RuleUpdate::Row> list(op, op.tensors);
  const DType type_of_copies = op.tensors.front().to.compute_copy.dtype;
  std::visit(
      [&]<class Rule>(const Rule& rule) {
        const auto chunks = op.dtype() == DType::f64 ? rule_chunks<Rule, double, double>
                            : op.tensors.front().rounding.words.on
                                ? rule_chunks<Rule, float, bf16>
                                : rule_chunks<Rule, float, float>;
        launch_grid(ctx, list.grid(kMapThreads), chunks, list, rule, op.decay,
                    op.decision.as<UpdateDecision>(), type_of_copies);
      },
      op.rule);
}

}  // namespace

void add_rule_update_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RuleUpdate, rule_update>());
}

}  // namespace llmtrain::kernels::cuda
