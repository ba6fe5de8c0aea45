#include "lib/plan/plan_text.hpp"

#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/assumptions.hpp"

namespace llmtrain::plan {

namespace {

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("  {:<26}{:>14}\n", name, value);
}

std::string offload_rows(const Plan& plan) {
  std::string text;
  if (plan.offloaded_bytes > 0) {
    const std::string bytes = format_bytes(plan.offloaded_bytes);
    std::string line = fmt::format("{}: {} in a file of this rank; a step reads and writes {}",
                                   plan.offloaded_contents, bytes, bytes);
    if (const std::uint64_t reads = plan.offloaded_parameter_reads; reads > 0) {
      line += fmt::format(", and reads {} of parameters for its products", format_bytes(reads));
    }
    text += row("offload", line);
  }
  if (const auto& host = plan.host_updates) {
    const std::string memory = format_bytes(host->memory_bytes + host->copies_bytes);
    std::string line = host->contents.empty()
                           ? fmt::format("updates: the host's, through {} of its memory", memory)
                           : fmt::format("{}: {} in the host's memory", host->contents, memory);
    line += fmt::format("; a step brings {} there and {} back", format_bytes(host->down_bytes),
                        format_bytes(host->up_bytes));
    if (const std::uint64_t brought = plan.brought_parameter_bytes; brought > 0) {
      line += fmt::format(", and {} of parameters for its products", format_bytes(brought));
    }
    text += row("offload", line);
    text += row("pinned memory for updates", format_bytes(host->pinned_bytes - host->copies_bytes));
    if (host->copies_bytes > 0) {
      text += row("pinned memory, parameters", format_bytes(host->copies_bytes));
    }
  }
  if (plan.activation_file_bytes > 0) {
    text += row("offload", fmt::format("activations: {} in a file of this rank; a step writes {}",
                                       format_bytes(plan.activation_file_bytes),
                                       format_bytes(plan.activation_traffic_bytes)));
  } else if (const auto& away = plan.device_activations) {
    text +=
        row("offload", fmt::format("activations: in the host's memory; a step brings {} there "
                                   "and {} back",
                                   format_bytes(away->down_bytes), format_bytes(away->up_bytes)));
  }
  if (const auto& away = plan.device_activations) {
    text += row("pinned memory, activations", format_bytes(away->pinned_bytes));
  }
  return text;
}

std::string category_rows(const Plan& plan) {
  std::string text =
      fmt::format("  {:<26}{:>14}{:>14}{:>14}\n", "memory", "whole run", "step peak", "eval peak");
  for (int c = 0; c < kNumCategories; ++c) {
    const auto i = static_cast<std::size_t>(c);
    if (plan.step.peak.per_category[i] == 0 && plan.eval.peak.per_category[i] == 0) continue;
    text += fmt::format("    {:<24}{:>14}{:>14}{:>14}\n", to_string(Category(c)),
                        format_bytes(plan.held[i]), format_bytes(plan.step.peak.per_category[i]),
                        format_bytes(plan.eval.peak.per_category[i]));
  }
  text += fmt::format("    {:<24}{:>14}{:>14}{:>14}\n", "at the peak instant", "",
                      format_bytes(plan.step.peak.total_bytes),
                      format_bytes(plan.eval.peak.total_bytes));
  text += fmt::format("    {:<24}{:>14}{:>14}{:>14}\n", "with gaps of the arena", "",
                      format_bytes(plan.step.extent_bytes), format_bytes(plan.eval.extent_bytes));
  text += fmt::format("    the step's peak is reached at \"{}\"\n", plan.step.peak.tag);
  return text;
}

std::string limit_row(std::uint64_t extent_bytes, std::uint64_t limit) {
  const bool fits = extent_bytes <= limit;
  return row(fits ? "fits" : "does NOT fit",
             fmt::format("{} of {}", format_bytes(extent_bytes), format_bytes(limit)));
}

std::string stages_of(const PipelinePlan& pipeline, std::size_t rank) {
  const std::vector<int>& rank_of_stage = pipeline.schedule.rank_of_stage;
  std::string text;
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    if (rank_of_stage[s] != static_cast<int>(rank)) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ", s);
  }
  return text;
}

/// The costs by which the actions are ordered, and those of the profile, where they matter.
std::string cost_rows(const PipelinePlan& pipeline, const StepPrediction* step) {
  if (!parallel::find_schedule(pipeline.schedule_name).by_costs) return "";
  const auto list = [](const parallel::ActionCosts& costs) {
    return fmt::format("[1, {:.2f}, {:.2f}]", costs.input_grad / costs.forward,
                       costs.weight_grad / costs.forward);
  };
  std::string text = row("ordered for F, I, W of", list(pipeline.schedule.shape.costs));
  if (step != nullptr) text += row("which take", list(step->stage_costs));
  return text;
}

/// What each rank of the pipeline has and needs, and how long it has nothing to do.
std::string pipeline_rows(const PipelinePlan& pipeline, const StepPrediction* step) {
  const parallel::ScheduleShape& shape = pipeline.schedule.shape;
  std::string text = fmt::format(
      "  {:<26}{}, {} stages, {} micro-batches{}\n", "pipeline", pipeline.schedule_name,
      shape.num_stages, shape.num_micro_batches,
      step == nullptr
          ? ""
          : fmt::format(", idle for {:.1f}% of its time", 100 * step->pipeline->bubble_fraction));
  text += cost_rows(pipeline, step);
  text += fmt::format("    {:<14}{:<12}{:>12}{:>14}{:>14}{:>8}\n", "rank", "stages", "whole run",
                      "step peak", "with gaps", "idle");
  for (std::size_t r = 0; r < pipeline.ranks.size(); ++r) {
    const Plan& plan = pipeline.ranks[r];
    std::uint64_t held = 0;
    for (const std::uint64_t bytes : plan.held) held += bytes;
    text += fmt::format(
        "    {:<14}{:<12}{:>12}{:>14}{:>14}{:>8}\n", plan.rank, stages_of(pipeline, r),
        format_bytes(held), format_bytes(plan.step.peak.total_bytes),
        format_bytes(plan.extent_bytes()),
        step == nullptr ? ""
                        : fmt::format("{:.1f}%", 100 * step->pipeline->ranks[r].bubble_fraction));
  }
  return text;
}

constexpr std::size_t kKernelsShown = 12;

std::string run_title(const RunShape& run) {
  std::string title = "time of the run, at most";
  if (run.steps > 0) title = fmt::format("time for {} steps", run.steps);
  if (run.steps > 0 && run.max_seconds > 0) title += " or max_time";
  return title;
}

std::string collective_rows(const std::vector<CollectiveTime>& collectives) {
  if (collectives.empty()) return "";
  std::string text =
      fmt::format("  {:<34}{:>8}{:>12}{:>12}\n", "collective", "calls", "sent", "time");
  for (const CollectiveTime& time : collectives) {
    text += fmt::format("    {:<32}{:>8}{:>12}{:>12}\n",
                        fmt::format("{} {} x{}{}{}", to_string(time.kind), time.group, time.ranks,
                                    time.link.empty() ? "" : ", ", time.link),
                        time.count, format_bytes(static_cast<std::uint64_t>(time.sent_bytes)),
                        time.seconds > 0 ? format_duration(time.seconds) : "");
  }
  return text;
}

std::string waiting_row(const StepPrediction& step) {
  if (step.collectives.empty()) return "";
  return row("waiting for collectives",
             fmt::format("{} ({:.1f}%)", format_duration(step.exposed_seconds),
                         100 * step.exposed_seconds / step.seconds));
}

bool differ(const RoleSurvey* ranks) {
  return ranks != nullptr && ranks->fullest().extent_bytes != ranks->emptiest().extent_bytes;
}

/// What the fullest rank needs and the emptiest one, where that is not the same.
std::string role_rows(const RoleSurvey* ranks) {
  if (!differ(ranks)) return "";
  const RoleMemory &most = ranks->fullest(), &least = ranks->emptiest();
  std::string text =
      fmt::format("  {:<26}{} (rank {}) to {} (rank {}); {} kinds of ranks", "memory of all ranks",
                  format_bytes(least.extent_bytes), least.rank, format_bytes(most.extent_bytes),
                  most.rank, ranks->num_roles);
  if (ranks->roles.size() < ranks->num_roles) {
    text += fmt::format(", planned are {} that own most or least", ranks->roles.size());
  }
  text += "\n";
  if (ranks->roles.size() < 3) return text;
  for (const RoleMemory& role : ranks->roles) {
    text += fmt::format("    {:<24}{:>12} for each of {}\n", fmt::format("as rank {}", role.rank),
                        format_bytes(role.extent_bytes), role.count);
  }
  return text;
}

/// "8 = dp 4 x tp 2; memory and time of rank 3, the fullest".
std::string ranks_text(const Plan& plan, bool is_fullest) {
  std::string axes;
  for (int a = 0; a < kNumAxes; ++a) {
    const Axis axis{static_cast<std::uint8_t>(a)};
    if (plan.mesh[axis] == 1) continue;
    axes += fmt::format("{}{} {}", axes.empty() ? " = " : " x ", to_string(axis), plan.mesh[axis]);
  }
  if (plan.mesh.ep > 1) axes += fmt::format(", ep {}", plan.mesh.ep);
  return fmt::format("{}{}; memory and time of rank {}{}", plan.mesh.world_size(), axes, plan.rank,
                     is_fullest ? ", the fullest" : "");
}

std::string assumption_rows(const std::vector<std::string>& assumptions) {
  std::string text;
  for (const std::string& line : assumptions) text += "    assumed: " + line + "\n";
  return text;
}

std::string time_rows(const Plan& plan, const std::optional<PlannedTime>& time) {
  if (!time) {
    return row("time", "unknown: run `llmtrain doctor` for times, or name a --profile") +
           collective_rows(collectives_of(plan.step, nullptr));
  }
  const StepPrediction& step = time->step;
  std::string text = row("predicted step time", format_duration(step.seconds));
  text += row("tokens per second", format_count(step.tokens_per_second));
  if (const int ranks = plan.mesh.world_size(); ranks > 1) {
    const double tokens = step.tokens_per_second / ranks;
    text += row("of each rank", fmt::format("{} tokens/s, {} FLOP/s", format_count(tokens),
                                            format_count(tokens * plan.model_flops_per_token)));
  }
  if (step.peak_flops > 0) {
    text += row("MFU", fmt::format("{:.1f}%", 100 * step.mfu));
    text += fmt::format("    = {}\n",
                        mfu_formula(plan, {step.peak_flops, time->run.compute, time->run.threads}));
  }
  if (time->run_seconds > 0) text += row(run_title(time->run), format_duration(time->run_seconds));
  text += fmt::format("    times from {}\n", time->source);
  if (plan.offloaded_bytes + plan.activation_file_bytes > 0) {
    text += "    not in it: what the disk takes longer for what is in files than the step\n";
  }
  if (plan.host_updates) {
    text += "    not in it: updates, which the host computes, and copies there and back\n";
  }
  if (plan.device_activations) {
    text += "    not in it: what copies of activations there and back take longer than the step\n";
  }
  text += assumption_rows(assumptions_of_time(plan));
  text += waiting_row(step) + collective_rows(step.collectives);
  text += fmt::format("  {:<34}{:>8}{:>12}{:>8}\n", "kernel", "launches", "time", "share");
  for (std::size_t i = 0; i < std::min(kKernelsShown, step.kernels.size()); ++i) {
    const KernelTime& kernel = step.kernels[i];
    text += fmt::format("    {:<32}{:>8}{:>12}{:>7.1f}%\n", kernel.name, kernel.count,
                        format_duration(kernel.seconds), 100 * kernel.seconds / step.seconds);
  }
  return text;
}

std::string launches_text(const Plan& plan) {
  if (!plan.records_launches) return "one by one";
  std::string text = "CUDA graphs";
  if (!plan.not_recorded.empty()) {
    text += fmt::format("; one by one in {}, where ranks exchange", plan.not_recorded);
  }
  if (plan.device_activations) {
    text += "; one by one in micro-batches, whose activations come and go beside them";
  } else if (plan.host_updates && plan.host_updates->brings_copies) {
    text += "; one by one in micro-batches, beside which parameters come";
  }
  if (plan.host_updates) text += "; updates are the host's";
  return text;
}

std::string exchange_text(std::string_view gpu_collectives) {
  if (gpu_collectives == "nccl") return "NCCL";
  if (gpu_collectives == "host") return "host memory";
  return "NCCL, or host memory where ranks share a GPU";
}

std::string checkpoint_text(const Plan& plan) {
  const std::string all = format_bytes(plan.durable_bytes());
  if (plan.export_bytes == 0) return all;
  return fmt::format("{}, of which {} for Hugging Face", all, format_bytes(plan.export_bytes));
}

}  // namespace

std::string to_text(const Plan& plan, const PlanContext& context) {
  std::string text;
  text += row("device", std::string(to_string(plan.device)));
  text += row("determinism", std::string(kernels::to_string(plan.determinism)));
  if (!plan.layers.empty()) {
    text += fmt::format("  {:<26}{}\n", "fp8", summary_of(plan.layers));
  }
  if (plan.mesh.world_size() > 1) {
    text += fmt::format("  {:<26}{}\n", "ranks", ranks_text(plan, differ(context.ranks)));
  }
  text += row("parameters", format_count(static_cast<double>(plan.parameters)));
  text += row("parameters per block", format_count(static_cast<double>(plan.parameters_per_block)));
  text += row("tokens per step", format_count(static_cast<double>(plan.tokens_per_step)));
  text += row("model FLOP per token", format_count(plan.model_flops_per_token));
  text += row("products per step", format_count(plan.step.flops()) + "FLOP");
  if (context.budgeted != nullptr) {
    text += fmt::format("  {:<26}{}\n", "computed again", to_string(*context.budgeted));
  }
  text += row("optimizer states",
              fmt::format("{:.4g} B a parameter", static_cast<double>(plan.optimizer_state_bytes) /
                                                      static_cast<double>(plan.parameters)));
  text += row("checkpoint", checkpoint_text(plan));
  if (const std::uint64_t count = context.local_checkpoints; count > 0) {
    text += row(fmt::format("local checkpoints, {}", count),
                format_bytes(count * plan.checkpoint_bytes));
  }
  if (const auto share = context.save_share) {
    text += row("saves beside the run", fmt::format("written {:g} % of the time", 100 * *share));
  }
  if (plan.pinned_bytes > 0) {
    text += row("pinned memory for saves", format_bytes(plan.pinned_bytes));
  }
  text += offload_rows(plan);
  if (plan.device == DeviceKind::cuda) {
    text += row("launches", launches_text(plan));
    if (!context.gpu_collectives.empty()) {
      text += row("exchange", exchange_text(context.gpu_collectives));
    }
  }
  text += category_rows(plan);
  const PipelinePlan* pipeline = context.pipeline;
  if (pipeline != nullptr) {
    text += pipeline_rows(*pipeline, context.time ? &context.time->step : nullptr);
  }
  text += role_rows(context.ranks) + assumption_rows(assumptions_of_memory(plan));
  if (context.limit_bytes) {
    const std::uint64_t most = pipeline != nullptr ? pipeline->extent_bytes() : plan.extent_bytes();
    text += limit_row(most, *context.limit_bytes);
  }
  return text + time_rows(plan, context.time);
}

}  // namespace llmtrain::plan
