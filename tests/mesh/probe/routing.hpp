#pragma once
/// Listens to the kernels of routers on the CPU: which experts each token chose, by its global
/// index, and how many rows came to this rank's experts.

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/engine/engine.hpp"
#include "lib/plan/plan.hpp"
#include "tests/mesh/probe/output.hpp"
#include "tests/mesh/probe/sent_bytes.hpp"

namespace llmtrain::test {

class Routing {
 public:
  /// Of one rank; one at a time in a process.
  Routing(const engine::EngineOptions& options, const MeshShape& mesh, int rank);
  ~Routing();
  Routing(const Routing&) = delete;
  Routing& operator=(const Routing&) = delete;

  /// `table` with ears; for an engine that this object outlives.
  const kernels::KernelTable* listen(const kernels::KernelTable& table);
  /// Whose counters tell the layers apart.
  void know(const engine::Engine& engine);

  void begin_step();
  /// After a step: "choices step S layer L", a logical tensor [tokens of the step, top_k] of expert
  /// ids by global token index, and "kept step S layer L" where room is limited, -1 for none. Of L
  /// the blocks with experts count. InternalError unless each layer saw each micro-batch once.
  void write(Output& out, std::int64_t step, std::int64_t first_sample, std::int64_t samples,
             std::int64_t samples_of_step) const;
  /// What the step's choices say of the rows on their way to experts and back.
  RowsToExperts rows_to_experts(const plan::PassPlan& step) const;
  /// Of each block with experts, choices of this rank's tokens in the step whose experts are
  /// another rank's; 0 for blocks of other stages.
  std::vector<double> rows_elsewhere() const;

  /// In the end: how often rows of a micro-batch came to a layer's experts here ("arrivals"), how
  /// often there were none, the most that came at once, and for how many there was room.
  /// InternalError when the plan has not as much.
  void write_rows(Output& out, const plan::Plan& plan) const;

 private:
  /// Of one micro-batch and layer: [rows, top_k].
  using Choices = std::vector<std::int32_t>;
  /// Of each layer, by micro-batch.
  using Layers = std::vector<std::vector<Choices>>;

  static void count_choices(const kernels::KernelCtx& ctx, const void* kernel, const View& space);
  static void column_sum(const kernels::KernelCtx& ctx, const void* kernel, const View& space);
  static void group_by_expert(const kernels::KernelCtx& ctx, const void* kernel, const View& space);
  void write_layers(Output& out, std::string_view kind, const Layers& layers, std::int64_t step,
                    std::int64_t first_sample, std::int64_t samples,
                    std::int64_t samples_of_step) const;

  std::int64_t num_experts_, top_k_, layers_count_;
  std::int64_t seq_len_, micro_batch_size_;
  std::int64_t most_kept_;  // of a micro-batch's choices, with limited room
  int ep_;
  bool as_many_to_each_;                 // rows, to every rank with experts
  std::vector<std::int64_t> positions_;  // of a sequence, on this rank
  std::unique_ptr<kernels::KernelTable> table_;
  kernels::KernelFunction count_choices_ = nullptr, column_sum_ = nullptr, group_ = nullptr;
  View choices_counter_, kept_counter_;
  int place_among_experts_ = 0;

  const void* counted_ = nullptr;  // what was counted last, and into what
  Choices last_;
  Layers choices_, kept_;
  std::int64_t arrivals_ = 0, idle_arrivals_ = 0, most_rows_ = 0, room_ = 0;
};

}  // namespace llmtrain::test
