#include "lib/plan/predict.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "kernels/code_matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::plan {

double predict(const HardwareProfile& profile, const LaunchGroup& group) {
  const KernelKey key = key_of(group.name, group.dtype, group.sizes);
  const auto model = profile.kernels.find(key);
  require<RecipeError>(model != profile.kernels.end(),
                       "the hardware profile has no times for {}; measure them with `llmtrain "
                       "doctor`",
                       to_string(key));
  return model->second.predict(point_of(group.name, group.sizes, group.cost));
}

double predict(const HardwareProfile& profile, const CollectiveGroup& group) {
  if (profile.network) return seconds_of(*profile.network, group);
  const auto model = profile.collectives.find(group.kind);
  require<RecipeError>(model != profile.collectives.end(),
                       "the hardware profile has no times for {}; measure them with `mpirun -n {} "
                       "llmtrain doctor`",
                       to_string(group.kind), std::max<std::size_t>(2, group.members.size()));
  // A smaller group than the one that was measured sends less in a call of as many bytes.
  CollectiveGroup measured = group;
  measured.members.resize(static_cast<std::size_t>(profile.ranks));
  const double share = group.mean_sent_bytes_of_call() > 0
                           ? group.mean_sent_bytes_of_call() / measured.mean_sent_bytes_of_call()
                           : 1;
  const double bytes = std::max(1.0, share * static_cast<double>(group.bytes));
  return model->second.predict({{bytes}, bytes});
}

std::string table_row(std::string_view name, DType dtype,
                      const std::array<std::int64_t, 4>& sizes) {
  static constexpr std::array<std::string_view, 3> kForms = {" forward", " input grad",
                                                             " weight grad"};
  if (!is_product(name)) return fmt::format("{} {}", name, to_string(dtype));
  const bool known = sizes[3] >= 0 && sizes[3] < std::ssize(kForms);
  return fmt::format("matmul{} {}", known ? kForms[static_cast<std::size_t>(sizes[3])] : "",
                     name.ends_with("tf32")              ? "tf32"
                     : name == kernels::CodeMatmul::name ? "fp8"
                                                         : to_string(dtype));
}

namespace {

/// What waits for what: the pass on a clock for launches and one for collectives.
struct PassTimes {
  double end = 0;
  double launches = 0;
  std::vector<double> actions;
};

class PassClock {
 public:
  PassClock(const std::vector<double>& launch_seconds,
            const std::vector<double>& collective_seconds, bool in_background)
      : launch_seconds_(&launch_seconds),
        collective_seconds_(&collective_seconds),
        in_background_(in_background) {}

  void take(const PassEvent& event) {
    switch (event.kind) {
      case PassEvent::Kind::launch:
        now_ += (*launch_seconds_)[event.index];
        launches_ += (*launch_seconds_)[event.index];
        break;
      case PassEvent::Kind::start:
        line_is_free_ = std::max(now_, line_is_free_) + (*collective_seconds_)[event.index];
        if (!in_background_) now_ = line_is_free_;
        ends_.push_back(line_is_free_);
        break;
      case PassEvent::Kind::wait:
        now_ = std::max(now_, ends_.at(event.index));
        break;
    }
  }
  double now() const { return now_; }
  double launches() const { return launches_; }
  double end() const { return std::max(now_, line_is_free_); }

 private:
  const std::vector<double>* launch_seconds_;
  const std::vector<double>* collective_seconds_;
  bool in_background_;
  double now_ = 0, line_is_free_ = 0, launches_ = 0;
  std::vector<double> ends_;
};

PassTimes times_of(const PassPlan& pass, const std::vector<double>& launch_seconds,
                   const std::vector<double>& collective_seconds, bool in_background) {
  PassTimes times;
  PassClock clock(launch_seconds, collective_seconds, in_background);
  std::size_t at = 0;
  const auto run_to = [&](std::size_t end) {
    for (; at < end; ++at) clock.take(pass.events[at]);
    return clock.now();
  };
  for (const ActionEvents& action : pass.actions) {
    const double began = run_to(action.begin);
    times.actions.push_back(run_to(action.end) - began);
  }
  run_to(pass.events.size());
  times.end = clock.end();
  times.launches = clock.launches();
  return times;
}

// Those between stages a simulation times. Around a ring a rank's own message travels while it
// receives another one.
double seconds_waited_for(const HardwareProfile& profile, const CollectiveGroup& group) {
  if (is_stage_message(group) || group.kind == Collective::send) return 0;
  return predict(profile, group);
}

PassTimes times_of(const PassPlan& pass, const HardwareProfile& profile) {
  std::vector<double> launch_seconds, collective_seconds;
  for (const LaunchGroup& group : pass.launches) launch_seconds.push_back(predict(profile, group));
  for (const CollectiveGroup& group : pass.collectives) {
    collective_seconds.push_back(seconds_waited_for(profile, group));
  }
  return times_of(pass, launch_seconds, collective_seconds, profile.device != DeviceKind::cpu);
}

/// Of a message between two ranks: a latency, and what its bytes take.
parallel::Link link_between(const HardwareProfile& profile, int from, int to, std::uint64_t bytes) {
  CollectiveGroup message{
      .kind = Collective::send, .group = "pp", .members = {from, to}, .bytes = 1, .count = 1};
  const double latency = predict(profile, message);
  message.bytes = bytes;
  const double beyond = predict(profile, message) - latency;
  if (beyond <= 0) return {.latency_seconds = latency};
  return {.latency_seconds = latency, .bytes_per_second = static_cast<double>(bytes) / beyond};
}

/// The step of all ranks of a pipeline; the seconds of what is outside of it.
double add_pipeline(const PipelinePlan& pipeline, const HardwareProfile& profile,
                    StepPrediction& step) {
  std::vector<ActionSeconds> ranks;
  double outside = 0;
  for (const Plan& plan : pipeline.ranks) {
    PassTimes times = times_of(plan.step, profile);
    const double inside = std::accumulate(times.actions.begin(), times.actions.end(), 0.0);
    outside = std::max(outside, times.end - inside);
    ranks.push_back(std::move(times.actions));
  }
  const std::uint64_t bytes = message_bytes(pipeline.ranks.front().step);
  const auto link = [&](int from, int to) {
    const auto world_rank = [&](int r) { return pipeline.ranks[static_cast<std::size_t>(r)].rank; };
    return link_between(profile, world_rank(from), world_rank(to), bytes);
  };
  step.pipeline = simulate(pipeline, ranks, link, profile.device != DeviceKind::cpu);
  step.stage_costs = inner_costs(pipeline, ranks);
  return outside;
}

}  // namespace

std::vector<CollectiveTime> collectives_of(const PassPlan& pass, const HardwareProfile* profile) {
  std::vector<CollectiveTime> times;
  for (const CollectiveGroup& group : pass.collectives) {
    const auto same = [&](const CollectiveTime& time) {
      return time.kind == group.kind && time.group == group.group;
    };
    auto time = std::find_if(times.begin(), times.end(), same);
    if (time == times.end()) {
      const bool known = profile != nullptr && profile->network;
      times.push_back(
          {.kind = group.kind,
           .group = group.group,
           .ranks = static_cast<int>(group.members.size()),
           .link = known ? std::string(link_name(*profile->network, group.members)) : ""});
      time = times.end() - 1;
    }
    time->count += group.count;
    time->sent_bytes += group.sent_bytes();
    if (profile == nullptr) continue;
    time->seconds += predict(*profile, group) * static_cast<double>(group.count);
  }
  return times;
}

StepPrediction predict_step(const Plan& plan, const HardwareProfile& profile, DType compute,
                            const PipelinePlan* pipeline) {
  require(plan.mesh[Axis::pp] == 1 || pipeline != nullptr, "one rank of a pipeline has no times");
  StepPrediction step;
  std::map<std::string, KernelTime> by_name;
  for (const LaunchGroup& group : plan.step.launches) {
    KernelTime& time = by_name[table_row(group.name, group.dtype, group.sizes)];
    time.count += group.count;
    time.seconds += predict(profile, group) * static_cast<double>(group.count);
    time.dtype = group.dtype;
    time.cost += static_cast<double>(group.count) * group.cost;
  }
  step.collectives = collectives_of(plan.step, &profile);
  const PassTimes times = times_of(plan.step, profile);
  step.seconds = times.end;
  step.exposed_seconds = times.end - times.launches;
  if (pipeline != nullptr) {
    const double outside = add_pipeline(*pipeline, profile, step);
    step.seconds = step.pipeline->seconds + outside;
    const auto here = std::ranges::find(pipeline->ranks, plan.rank, &Plan::rank);
    require(here != pipeline->ranks.end(), "rank {} is not in its pipeline", plan.rank);
    const auto place = static_cast<std::size_t>(here - pipeline->ranks.begin());
    step.exposed_seconds += step.pipeline->ranks[place].exposed_message_seconds;
  }
  for (auto& [name, time] : by_name) {
    time.name = name;
    step.kernels.push_back(std::move(time));
  }
  std::stable_sort(step.kernels.begin(), step.kernels.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  require(step.seconds > 0, "a step without launches");
  step.tokens_per_second = static_cast<double>(plan.tokens_per_step) / step.seconds;
  step.peak_flops = profile.peak_flops(compute, plan.tf32);
  if (step.peak_flops > 0) {
    step.mfu = plan.model_flops_per_token * step.tokens_per_second /
               (step.peak_flops * plan.mesh.world_size());
  }
  return step;
}

namespace {

double seconds_of_run(const RunShape& run, double tokens_per_second) {
  // By tokens, not steps: a ramp begins with smaller ones.
  const double steps = static_cast<double>(run.tokens) / tokens_per_second;
  if (run.max_seconds == 0) return steps;
  return run.steps == 0 ? run.max_seconds : std::min(steps, run.max_seconds);
}

}  // namespace

PlannedTime planned_time(const Plan& plan, const HardwareProfile& profile, const RunShape& run,
                         std::string source, const PipelinePlan* pipeline) {
  require<RecipeError>(profile.device == run.device,
                       "{} has the times of a {}, but the run is for a {}; choose another profile, "
                       "or set run.device",
                       source, to_string(profile.device), to_string(run.device));
  const std::string_view verb = profile.network ? "is of" : "was measured with";
  const std::string measure =
      profile.network
          ? ""
          : fmt::format("measure again with `llmtrain doctor --threads {}`, or ", run.threads);
  require<RecipeError>(profile.threads == run.threads,
                       "{} {} {} threads, but the run has {}; {}set run.threads={}", source, verb,
                       profile.threads, run.threads, measure, profile.threads);
  const int ranks = plan.mesh.world_size();
  require<RecipeError>(
      profile.device != DeviceKind::cpu || profile.network || profile.ranks == ranks,
      "{} was measured by {} process{} at a time, but the run has {} rank{}; "
      "measure again with `{}llmtrain doctor --threads {}`",
      source, profile.ranks, profile.ranks == 1 ? "" : "es", ranks, ranks == 1 ? "" : "s",
      ranks == 1 ? "" : fmt::format("mpirun -n {} ", ranks), run.threads);
  PlannedTime time{.step = predict_step(plan, profile, run.compute, pipeline),
                   .run = run,
                   .source = std::move(source)};
  time.run_seconds = seconds_of_run(run, time.step.tokens_per_second);
  return time;
}

PlannedTime at_rate(PlannedTime time, const FmaRate& now) {
  if (time.step.peak_flops == 0 || now.mean == 0) return time;
  const double longer = time.step.peak_flops / now.mean;
  time.step.seconds *= longer;
  time.step.tokens_per_second /= longer;
  time.step.mfu /= longer;
  for (KernelTime& kernel : time.step.kernels) kernel.seconds *= longer;
  for (CollectiveTime& collective : time.step.collectives) collective.seconds *= longer;
  time.step.exposed_seconds *= longer;
  time.run_seconds = seconds_of_run(time.run, time.step.tokens_per_second);
  return time;
}

std::string mfu_formula(const Plan& plan, const PeakFlops& peak) {
  const std::string of =
      peak.threads > 0
          ? fmt::format("FMA peak of {}, {} threads", to_string(peak.compute), peak.threads)
          : fmt::format("dense peak of {}", plan.tf32 ? "tf32" : to_string(peak.compute));
  const int ranks = plan.mesh.world_size();
  const std::string each = fmt::format("{:.0f} GFLOP/s", 1e-9 * peak.flops);
  return fmt::format("{} model FLOP per token x tokens/s / {} ({})",
                     format_count(plan.model_flops_per_token),
                     ranks > 1 ? fmt::format("({} ranks x {})", ranks, each) : each, of);
}

}  // namespace llmtrain::plan
