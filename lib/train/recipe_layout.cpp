/// Rules between a recipe's layout and its other sections, and what follows from it.

#include <algorithm>
#include <utility>

#include "lib/base/refused_key.hpp"
#include "lib/base/units.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/parallel/divisors.hpp"
#include "lib/plan/pipeline.hpp"
#include "lib/plan/plan.hpp"
#include "lib/recipe/judge_value.hpp"
#include "lib/train/device.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

void Recipe::validate_layout(recipe::Issues& issues) const {
  recipe::judge(issues, [&] {
    const std::uint64_t seq_len = training.seq_len().value;
    const auto parts = static_cast<std::uint64_t>(parallelism.sequence_parts());
    if (seq_len % parts == 0) return;
    issues.add(training.seq_len,
               fmt::format("{} tokens do not divide by the {} parts into which {} cut them",
                           seq_len, parts, parallelism.sequence_cutters()),
               seq_len < parts ? fmt::format("{} do", parts)
                               : fmt::format("{} and {} do", seq_len / parts * parts,
                                             (seq_len / parts + 1) * parts));
  });
  recipe::judge(issues, [&] {
    const auto& shape =
        dynamic_cast<const models::CommonModelOptions&>(*model.architecture.section());
    parallelism.validate_blocks(issues, static_cast<std::int64_t>(shape.num_hidden_layers()));
  });
  recipe::judge(issues,
                [&] { parallelism.validate_experts(issues, model.spec().experts.num_experts); });
  recipe::judge(issues, [&] { validate_virtual_workers(issues); });
  recipe::judge(issues, [&] { validate_grad_reduce(issues); });
  recipe::judge(issues, [&] { validate_same_bits(issues); });
  recipe::judge(issues, [&] {
    const bool by_tree = run.determinism() == kernels::Determinism::layout;
    if (!by_tree || parallelism.gpu_collectives() != parallel::GpuCollectives::nccl) return;
    issues.add(parallelism.gpu_collectives,
               "run.determinism: layout has an order of sums, NCCL its own",
               "leave it out, or choose run.determinism: run");
  });
}

// What makes sums whose terms or whose order come with the number of ranks.
void Recipe::validate_same_bits(recipe::Issues& issues) const {
  if (run.determinism() != kernels::Determinism::layout) return;
  const std::string remedy = "leave it out, or choose run.determinism: run";
  if (parallelism.ep() > 1) {
    issues.add(parallelism.ep,
               "joins rows of several ranks in one product of an expert, so the bits of its "
               "gradients depend on how many those are, against run.determinism: layout",
               remedy);
  }
  if (parallelism.dp_replicate() > 1 && parallelism.sp() > 1) {
    issues.add(parallelism.dp_replicate,
               "with sp adds up gradients in another order than without, against "
               "run.determinism: layout",
               remedy);
  }
}

void Recipe::validate_grad_reduce(recipe::Issues& issues) const {
  const std::optional<DType>& type = precision.grad_reduce();
  if (!type || run.determinism() != kernels::Determinism::layout) return;
  const DType own = statistics_dtype(precision.compute());
  if (*type == own) return;
  issues.add(precision.grad_reduce,
             fmt::format("rounds what ranks exchange, which run.determinism: layout makes equal to "
                         "what one rank has in {}",
                         to_string(own)),
             "leave it out, or choose run.determinism: run");
}

void Recipe::validate_virtual_workers(recipe::Issues& issues) const {
  const auto& given = run.virtual_workers().value;
  if (!given || run.determinism() != kernels::Determinism::layout) return;
  const std::int64_t micro_batches = engine::BatchGeometry(training).common_micro_batches();
  const auto workers = static_cast<std::int64_t>(given->value);
  if (micro_batches % workers == 0) return;
  issues.add(run.virtual_workers,
             fmt::format("{} do not divide the {} micro-batches of {} step", workers, micro_batches,
                         training.rampup_batch_size ? "every" : "a"),
             fmt::format("{} do", micro_batches & -micro_batches));
}

void Recipe::enter(const JobPlace& place) {
  job = place;
  budgeted_.reset();
  has_entered_ = true;
  parallelism.take_rest(place.size);
  recipe::check_rules(*this);
}

namespace {

// What else is wrong is known without the axis that a key names. False: it names none.
bool without(MeshShape& mesh, std::string_view key) {
  if (key == "parallelism.ep") return std::exchange(mesh.ep, 1) > 1;
  for (const Axis axis : {Axis::tp, Axis::sp}) {
    if (key != fmt::format("parallelism.{}", to_string(axis))) continue;
    if (axis == Axis::tp) mesh.tp_sequence_parallel = false;
    if (axis == Axis::sp) mesh.sp_ulysses = 1;
    return std::exchange(mesh.sizes[static_cast<int>(axis)], 1) > 1;
  }
  return false;
}

}  // namespace

void Recipe::validate_on_ranks(recipe::Issues& issues) const {
  MeshShape mesh;
  const std::size_t before = issues.size();
  recipe::judge_value(issues, *this, [&] { mesh = mesh_shape(); });
  if (issues.size() > before) return;  // all that follows is a share of a rank
  recipe::judge_value(issues, *this, [&] { geometry(); });
  const std::size_t before_files = issues.size();
  recipe::judge(issues, [&] { validate_files_of(mesh, issues); });
  if (issues.size() > before_files) return;
  // Only a recipe that its rules have nothing against makes a model.
  for (bool again = before == 0; again;) {
    again = false;
    recipe::judge_value(issues, *this, [&] {
      try {
        engine::EngineOptions options = options_without_budget();
        options.virtual_workers = 0;  // geometry() has judged them
        plan::check_parameters(options, mesh, run.named_device());
      } catch (const RefusedKey& refused) {
        again = without(mesh, refused.key());
        throw;
      }
    });
  }
  if (issues.empty()) recipe::judge_value(issues, *this, [&] { budgeted_recompute(); });
}

parallel::ActionCosts Recipe::stage_costs(const engine::EngineOptions& options) const {
  if (const std::vector<double>& costs = parallelism.pp_costs(); !costs.empty()) {
    return {.forward = costs[0], .input_grad = costs[1], .weight_grad = costs[2]};
  }
  const bool is_ordered = parallel::find_schedule(options.pipeline.schedule).by_costs;
  if (!is_ordered || !parallelism.rest_axis().empty()) return {};
  return plan::flop_costs(options, {.mesh = mesh_shape()});
}

const plan::BudgetedRecompute* Recipe::budgeted_recompute() const {
  const std::optional<recipe::SizeOrShare>& budget = activation_checkpoint.budget();
  const bool is_known =
      parallelism.rest_axis().empty() && job.size % parallelism.least_ranks() == 0;
  if (!budget || !is_known) return nullptr;
  if (!budgeted_) {
    engine::Target target = target_of(*this);
    target.mesh = mesh_shape();
    budgeted_ = plan::recompute_within(options_without_budget(), geometry().global_batch_size(),
                                       target, *budget);
  }
  if (budgeted_->fits()) return &*budgeted_;
  throw recipe::RefusedValue(
      activation_checkpoint.budget,
      fmt::format(
          "is {}, and activations take {} on a rank even with all blocks computed again ({} "
          "with none)",
          format_bytes(budgeted_->budget_bytes), format_bytes(budgeted_->bytes),
          format_bytes(budgeted_->whole_bytes)),
      "raise it, or lower training.micro_batch_size or training.loss_chunk");
}

int Recipe::virtual_workers() const {
  const auto& given = run.virtual_workers().value;
  if (run.determinism() != kernels::Determinism::layout) return 0;
  if (given) return static_cast<int>(given->value);
  constexpr std::int64_t kMost = 64;
  const std::int64_t micro_batches = engine::BatchGeometry(training).common_micro_batches();
  return static_cast<int>(std::min(kMost, micro_batches & -micro_batches));
}

engine::BatchGeometry Recipe::geometry() const {
  const MeshShape mesh = mesh_shape();
  engine::BatchGeometry geometry(training, mesh[Axis::dp]);
  if (const int workers = virtual_workers(); workers > 0) {
    if (workers % mesh[Axis::dp] != 0) {
      throw recipe::RefusedValue(
          parallelism.dp,
          fmt::format("{} ranks do not divide the {} virtual workers of run.determinism: layout",
                      mesh[Axis::dp], workers),
          fmt::format("{}; more ranks need {}", parallel::divisors(workers, mesh[Axis::dp]),
                      run.virtual_workers().value
                          ? "more run.virtual_workers"
                          : "a training.global_batch_size that has more of them"));
    }
  }
  if (mesh[Axis::pp] > 1) {
    for (const std::int64_t samples : geometry.batch_sizes()) {
      parallelism.pipeline(samples / geometry.data_ranks() / geometry.micro_batch_size());
    }
  }
  return geometry;
}

}  // namespace llmtrain::train
