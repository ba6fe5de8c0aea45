// The plan for programs.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "lib/plan/assumptions.hpp"
#include "lib/plan/plan_text.hpp"

namespace llmtrain::plan {

namespace {

using Json = nlohmann::ordered_json;

Json peak_json(const Peak& peak) {
  Json json;
  json["peak_bytes"] = peak.total_bytes;
  json["peak_instant"] = peak.tag;
  for (int c = 0; c < kNumCategories; ++c) {
    json["category_bytes"][std::string(to_string(Category(c)))] =
        peak.per_category[static_cast<std::size_t>(c)];
  }
  return json;
}

Json role_json(const RoleSurvey& ranks) {
  Json json;
  json["kinds"] = ranks.num_roles;
  json["smallest_extent_bytes"] = ranks.emptiest().extent_bytes;
  json["largest_extent_bytes"] = ranks.fullest().extent_bytes;
  for (const RoleMemory& role : ranks.roles) {
    json["planned"].push_back({{"rank", role.rank},
                               {"ranks", role.count},
                               {"peak_bytes", role.peak_bytes},
                               {"extent_bytes", role.extent_bytes},
                               {"step", peak_json(role.step)}});
  }
  return json;
}

Json time_json(const PlannedTime& time) {
  Json json;
  json["step_seconds"] = time.step.seconds;
  json["tokens_per_second"] = time.step.tokens_per_second;
  json["mfu"] = time.step.mfu;
  json["peak_flops"] = time.step.peak_flops;
  json["threads"] = time.run.threads;
  if (time.run.steps > 0) json["steps"] = time.run.steps;
  if (time.run.max_seconds > 0) json["max_seconds"] = time.run.max_seconds;
  if (time.run_seconds > 0) json["run_seconds"] = time.run_seconds;
  std::string source = time.source;
  std::ranges::replace(source, '\n', ' ');
  json["source"] = source;
  for (const KernelTime& kernel : time.step.kernels) {
    json["kernels"].push_back(
        {{"kernel", kernel.name}, {"count", kernel.count}, {"seconds", kernel.seconds}});
  }
  if (time.step.collectives.empty()) return json;
  json["exposed_seconds"] = time.step.exposed_seconds;
  for (const CollectiveTime& collective : time.step.collectives) {
    json["collectives"].push_back({{"collective", to_string(collective.kind)},
                                   {"group", collective.group},
                                   {"ranks", collective.ranks},
                                   {"link", collective.link},
                                   {"count", collective.count},
                                   {"sent_bytes", collective.sent_bytes},
                                   {"seconds", collective.seconds}});
  }
  return json;
}

Json pipeline_json(const PipelinePlan& pipeline, const StepPrediction* step) {
  Json json;
  json["schedule"] = pipeline.schedule_name;
  json["stages"] = pipeline.schedule.shape.num_stages;
  json["micro_batches"] = pipeline.schedule.shape.num_micro_batches;
  if (step != nullptr) json["bubble_fraction"] = step->pipeline->bubble_fraction;
  for (std::size_t r = 0; r < pipeline.ranks.size(); ++r) {
    Json rank{{"rank", pipeline.ranks[r].rank},
              {"step_peak_bytes", pipeline.ranks[r].step.peak.total_bytes},
              {"extent_bytes", pipeline.ranks[r].extent_bytes()}};
    if (step != nullptr) rank["bubble_fraction"] = step->pipeline->ranks[r].bubble_fraction;
    json["ranks"].push_back(std::move(rank));
  }
  return json;
}

Json pass_json(const PassPlan& pass) {
  Json json = peak_json(pass.peak);
  json["extent_bytes"] = pass.extent_bytes;
  json["flops"] = pass.flops();
  json["launches"] = Json::array();
  for (const LaunchGroup& group : pass.launches) {
    json["launches"].push_back({{"kernel", group.name},
                                {"dtype", to_string(group.dtype)},
                                {"sizes", group.sizes},
                                {"count", group.count},
                                {"flops", group.cost.flops},
                                {"bytes_read", group.cost.bytes_read},
                                {"bytes_written", group.cost.bytes_written}});
  }
  for (const CollectiveGroup& group : pass.collectives) {
    json["collectives"].push_back({{"collective", to_string(group.kind)},
                                   {"group", group.group},
                                   {"members", group.members},
                                   {"bytes", group.bytes},
                                   {"count", group.count},
                                   {"sent_bytes", group.sent_bytes()}});
  }
  return json;
}

Json layers_json(const std::vector<LayerPrecision>& layers) {
  Json json{{"quantized", Json::array()}, {"bf16", Json::array()}};
  for (const LayerPrecision& layer : layers) {
    json[layer.is_quantized ? "quantized" : "bf16"].push_back(
        {{"weight", layer.name}, {"why", layer.why}});
  }
  return json;
}

Json budget_json(const BudgetedRecompute& budgeted) {
  return {{"policy", to_string(budgeted.policy)},
          {"budget_bytes", budgeted.budget_bytes},
          {"activation_bytes", budgeted.bytes},
          {"activation_bytes_without", budgeted.whole_bytes},
          {"added_work", budgeted.added_work}};
}

}  // namespace

std::string to_json(const Plan& plan, const PlanContext& context) {
  const std::optional<PlannedTime>& time = context.time;
  Json json;
  json["device"] = to_string(plan.device);
  json["determinism"] = kernels::to_string(plan.determinism);
  if (!plan.layers.empty()) json["fp8"] = layers_json(plan.layers);
  if (plan.mesh.world_size() > 1) {
    for (int a = 0; a < kNumAxes; ++a) {
      const Axis axis{static_cast<std::uint8_t>(a)};
      json["mesh"][std::string(to_string(axis))] = plan.mesh[axis];
    }
    json["rank"] = plan.rank;
  }
  if (context.ranks != nullptr) json["ranks"] = role_json(*context.ranks);
  if (context.budgeted != nullptr) json["recompute"] = budget_json(*context.budgeted);
  if (context.pipeline != nullptr) {
    json["pipeline"] = pipeline_json(*context.pipeline, time ? &time->step : nullptr);
  }
  json["assumptions"]["memory"] = assumptions_of_memory(plan);
  if (time) json["assumptions"]["time"] = assumptions_of_time(plan);
  json["parameters"] = plan.parameters;
  json["parameters_per_block"] = plan.parameters_per_block;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["model_flops_per_token"] = plan.model_flops_per_token;
  json["optimizer_state_bytes"] = plan.optimizer_state_bytes;
  json["checkpoint_bytes"] = plan.durable_bytes();
  if (plan.export_bytes > 0) json["export_bytes"] = plan.export_bytes;
  if (context.local_checkpoints > 0) {
    json["local_checkpoints_bytes"] = context.local_checkpoints * plan.checkpoint_bytes;
  }
  if (const auto share = context.save_share) json["save_share"] = *share;
  if (plan.pinned_bytes > 0) json["pinned_bytes"] = plan.pinned_bytes;
  if (plan.offloaded_bytes > 0) {
    json["offload"] = {{"contents", plan.offloaded_contents},
                       {"file_bytes", plan.offloaded_bytes},
                       {"step_read_bytes", plan.offloaded_bytes + plan.offloaded_parameter_reads},
                       {"step_written_bytes", plan.offloaded_bytes}};
  }
  if (const auto& host = plan.host_updates) {
    Json& updates = json["host_updates"];
    if (!host->contents.empty()) updates["contents"] = host->contents;
    updates["memory_bytes"] = host->memory_bytes;
    updates["pinned_bytes"] = host->pinned_bytes;
    updates["step_down_bytes"] = host->down_bytes;
    updates["step_up_bytes"] = host->up_bytes;
    if (host->copies_bytes > 0) updates["pinned_parameter_bytes"] = host->copies_bytes;
    if (host->brings_copies) updates["step_parameter_bytes"] = plan.brought_parameter_bytes;
  }
  if (const auto& away = plan.device_activations) {
    json["host_activations"] = {{"pinned_bytes", away->pinned_bytes},
                                {"step_down_bytes", away->down_bytes},
                                {"step_up_bytes", away->up_bytes}};
  }
  if (plan.activation_file_bytes > 0) {
    json["activation_offload"] = {{"file_bytes", plan.activation_file_bytes},
                                  {"step_written_bytes", plan.activation_traffic_bytes}};
  }
  if (plan.device == DeviceKind::cuda) {
    json["cuda_graphs"] = plan.records_launches;
    json["not_recorded"] = plan.not_recorded;
    if (!context.gpu_collectives.empty()) json["gpu_collectives"] = context.gpu_collectives;
  }
  for (int c = 0; c < kNumCategories; ++c) {
    json["held_bytes"][std::string(to_string(Category(c)))] =
        plan.held[static_cast<std::size_t>(c)];
  }
  json["init"] = peak_json(plan.init);
  json["step"] = pass_json(plan.step);
  json["eval"] = pass_json(plan.eval);
  json["save"] = peak_json(plan.save);
  json["tuned_products"] = plan.products.size();
  json["tuning_bytes"] = plan.tuning_bytes;
  if (time) json["time"] = time_json(*time);
  json["step_trace_hash"] = to_hex(hash_of(plan.step_trace));
  return json.dump(2) + "\n";
}

}  // namespace llmtrain::plan
