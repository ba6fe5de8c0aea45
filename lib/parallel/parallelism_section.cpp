#include "lib/parallel/parallelism_section.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "lib/base/require.hpp"
#include "lib/parallel/divisors.hpp"
#include "lib/parallel/stage_names.hpp"

namespace llmtrain::parallel {

std::string_view to_string(GpuCollectives how) {
  constexpr std::array<std::string_view, 3> kNames{"auto", "nccl", "host"};
  return kNames[static_cast<std::size_t>(how)];
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleRow& row : schedules()) names.emplace_back(row.name);
  return names;
}

void ParallelismSection::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] { validate_sizes(issues); });
  if (tp_sequence_parallel() && tp() == 1) {
    issues.add(tp_sequence_parallel, "has nobody to share tokens with: parallelism.tp is 1",
               "set parallelism.tp, or leave this out");
  }
  if (const std::set<std::string> named(order().begin(), order().end());
      named.size() != order().size()) {
    issues.add(order, "names an axis twice", "name each of tp, sp, dp and pp once");
  }
  if (dp_replicate() > 1 && zero() == 0) {
    issues.add(dp_replicate, "has no slices to repeat: parallelism.zero is 0",
               "set parallelism.zero, or leave this out");
  }
  recipe::judge(issues, [&] { validate_sequences(issues); });
  recipe::judge(issues, [&] { validate_pipeline(issues); });
}

std::string divisors(std::int64_t whole, std::int64_t size) {
  if (size > whole) return fmt::format("{} does", whole);
  std::int64_t below = size, above = size;
  while (whole % below != 0) --below;
  while (whole % above != 0) ++above;
  return fmt::format("{} and {} do", below, above);
}

void ParallelismSection::validate_sequences(recipe::Issues& issues) const {
  if (sp() == 1 && sp_algo() != SequenceSharing::all_gather) {
    issues.add(sp_algo, "does nothing: parallelism.sp is 1", "leave it out");
  }
  if (sp_ulysses() == 1 || sp() == kRest) return;  // kRest: again when the ranks are known
  if (sp_algo() == SequenceSharing::ulysses) {
    issues.add(sp_ulysses, "does nothing: with sp_algo: ulysses all ranks of sp share heads",
               "leave it out, or choose how groups of such ranks attend: all_gather or ring");
  } else if (sp() % sp_ulysses() != 0) {
    // All of sp are one group, which is refused.
    std::int64_t below = std::max<std::int64_t>(1, std::min(sp_ulysses(), sp() - 1));
    while (sp() % below != 0) --below;
    issues.add(sp_ulysses, fmt::format("does not divide parallelism.sp {}", sp()),
               fmt::format("{} does", below));
  } else if (sp_ulysses() == sp()) {
    issues.add(sp_ulysses, "leaves one group, which has nobody to attend to",
               "set sp_algo: ulysses, and leave this out");
  }
}

void ParallelismSection::validate_sizes(recipe::Issues& issues) const {
  const recipe::Key<std::int64_t>* rest = nullptr;
  const recipe::Key<std::int64_t>* largest = &dp;
  double named = 1;
  for (const auto* axis : {&dp, &tp, &pp, &sp}) {
    if ((*axis)() == 0) {
      issues.add(*axis, "is a number of ranks", "-1 takes all ranks that the other axes leave");
    }
    named *= static_cast<double>(std::max<std::int64_t>(1, (*axis)()));
    if ((*axis)() > (*largest)()) largest = axis;
    if ((*axis)() != kRest) continue;
    if (rest != nullptr) {
      const std::string_view how = rest->is_set() ? "" : " (its default)";
      issues.add(
          *axis,
          fmt::format("takes the ranks that are left, and so does {}: -1{}", rest->path(), how),
          fmt::format("give one of them a number: {}=1, say", rest->path()));
    }
    rest = axis;
  }
  if (ep() == 0) issues.add(ep, "is a number of ranks", "-1 takes all of dp x sp");
  if (named > kMostRanks) {
    issues.add(*largest, fmt::format("makes a job of {:.0f} ranks", named),
               fmt::format("{} is the most", kMostRanks));
  }
}

void ParallelismSection::validate_pipeline(recipe::Issues& issues) const {
  if (pp() == 1) {
    constexpr std::string_view kProblem = "does nothing: parallelism.pp is 1";
    if (pp_schedule() != kDefaultSchedule)
      issues.add(pp_schedule, std::string(kProblem), "leave it out");
    if (!pp_layers().empty()) issues.add(pp_layers, std::string(kProblem), "leave it out");
    if (!pp_stages().empty()) issues.add(pp_stages, std::string(kProblem), "leave it out");
    if (!pp_costs().empty()) issues.add(pp_costs, std::string(kProblem), "leave it out");
    if (pp_stages_per_rank()) issues.add(pp_stages_per_rank, std::string(kProblem), "leave it out");
    return;
  }
  const ScheduleRow& row = find_schedule(pp_schedule());
  if (pp_stages_per_rank() && row.stages_per_rank > 0) {
    issues.add(pp_stages_per_rank,
               fmt::format("does nothing: {} has {} on every rank", row.name, row.stages_per_rank),
               "leave it out");
  } else if (!pp_stages_per_rank() && row.stages_per_rank == 0) {
    issues.add(pp_schedule, fmt::format("{} takes any number of stages per rank", row.name),
               "set parallelism.pp_stages_per_rank: 2, or more");
  }
  if (!pp_costs().empty() && !row.by_costs) {
    issues.add(pp_costs, fmt::format("do nothing: {} has one order, whatever they are", row.name),
               "leave them out, or choose parallelism.pp_schedule: v_half");
  } else if (!pp_costs().empty() && pp_costs().size() != 3) {
    issues.add(pp_costs,
               fmt::format("{} numbers, where F, I and W have one each", pp_costs().size()),
               "give three, or leave them out");
  }
}

void ParallelismSection::validate_blocks(recipe::Issues& issues, std::int64_t num_blocks) const {
  if (pp() == kRest) return;  // again when the ranks are known
  if (pp() == 1) return;      // keys of stages are refused then
  if (!validate_stages(issues, num_blocks)) return;
  std::vector<std::int64_t> blocks;
  try {
    blocks = stage_blocks(num_blocks);
  } catch (const recipe::RefusedValue& refused) {
    return refused.add_to(issues);
  }
  if (blocks.empty()) {
    if (num_blocks >= num_stages()) return;
    const std::int64_t most = num_blocks / stages_per_rank();
    issues.add(pp,
               fmt::format("{} stages of a pipeline need a block each, and the model has {}",
                           num_stages(), num_blocks),
               most > 0
                   ? fmt::format("{} is the most; the ranks of a job are a multiple of it", most)
                   : fmt::format("take a schedule with fewer than {} stages on a rank",
                                 stages_per_rank()));
    return;
  }
  const auto sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (sum != num_blocks) {
    issues.add(pp_layers, fmt::format("{} blocks, and the model has {}", sum, num_blocks),
               "leave it out for stages that differ by one block at most");
  }
  // The first stage embeds and the last one has the head; between them a stage would do nothing.
  if (std::any_of(blocks.begin() + 1, blocks.end() - 1, [](std::int64_t n) { return n == 0; })) {
    const bool named = !pp_stages().empty();
    issues.add(named ? static_cast<const recipe::Entry&>(pp_stages) : pp_layers,
               "a stage between the first and the last one has no block",
               "only those two may have none");
  }
}

bool ParallelismSection::validate_stages(recipe::Issues& issues, std::int64_t num_blocks) const {
  if (!pp_layers().empty() && !pp_stages().empty()) {
    issues.add(pp_layers, "says again what parallelism.pp_stages does", "leave one of them out");
    return false;
  }
  const auto stages = static_cast<std::size_t>(num_stages());
  if (!pp_layers().empty() && pp_layers().size() != stages) {
    issues.add(pp_layers, fmt::format("{} numbers for {} stages", pp_layers().size(), stages),
               fmt::format("give each stage one, {} in all", num_blocks));
    return false;
  }
  if (!pp_stages().empty() && pp_stages().size() != stages) {
    issues.add(pp_stages, fmt::format("{} texts for {} stages", pp_stages().size(), stages),
               "give each stage one, with the names of its layers");
    return false;
  }
  return true;
}

std::vector<std::int64_t> ParallelismSection::stage_blocks(std::int64_t num_blocks) const {
  const std::vector<std::int64_t>& numbers = pp_layers();  // empty where there are names
  if (pp_stages().empty()) return numbers;
  const auto blocks = blocks_of_names(pp_stages(), num_blocks);
  if (const auto* mistake = std::get_if<NamesMistake>(&blocks)) {
    throw recipe::RefusedValue(pp_stages, mistake->problem, mistake->remedy);
  }
  return std::get<std::vector<std::int64_t>>(blocks);
}

void ParallelismSection::validate_experts(recipe::Issues& issues, std::int64_t num_experts) const {
  if (ep() == 1) {
    if (ep_room()) issues.add(ep_room, "does nothing: parallelism.ep is 1", "leave it out");
    return;
  }
  if (num_experts == 0) {
    issues.add(ep, "has nothing to share: the model has no experts", "leave it out");
  } else if (ep() != kRest && num_experts % ep() != 0) {  // kRest: again when the ranks are known
    issues.add(ep, fmt::format("does not divide the model's {} experts", num_experts),
               expert_sizes(num_experts));
  }
}

std::string ParallelismSection::expert_sizes(std::int64_t num_experts) const {
  const bool is_known = dp() > 0 && sp() > 0 && dp() % dp_replicate() == 0;
  const std::int64_t sharers = is_known ? dp() / dp_replicate() * sp() : 0;
  const std::string_view where = is_known ? "" : ", where dp x sp is a multiple";
  return fmt::format("{}{}", divisors(std::gcd(num_experts, sharers), ep()), where);
}

int ParallelismSection::stages_per_rank() const {
  const auto asked = static_cast<int>(pp_stages_per_rank().value_or(1));
  const int of_schedule = find_schedule(pp_schedule()).stages_per_rank;
  return of_schedule > 0 ? of_schedule : asked;
}

ScheduleShape ParallelismSection::pipeline(std::int64_t num_micro_batches) const {
  const auto ranks = static_cast<int>(pp());
  const ScheduleShape shape{.num_ranks = ranks,
                            .num_stages = ranks * stages_per_rank(),
                            .num_micro_batches = static_cast<int>(num_micro_batches)};
  const std::string refusal = find_schedule(pp_schedule()).refusal(shape);
  if (!refusal.empty()) throw recipe::RefusedValue(pp_schedule, refusal);
  return shape;
}

std::int64_t ParallelismSection::sequence_parts() const {
  const std::int64_t pieces = sp_algo() != SequenceSharing::ulysses && sp() > 1 ? 2 : 1;
  const auto known = [](std::int64_t size) { return std::max<std::int64_t>(1, size); };
  const std::int64_t of_rank = known(sp()) * (tp_sequence_parallel() ? known(tp()) : 1);
  return std::lcm(pieces * known(sp()), of_rank);
}

std::string ParallelismSection::sequence_cutters() const {
  std::string keys;
  const auto name = [&](std::string_view key, const std::string& value) {
    keys += fmt::format("{}{} {}", keys.empty() ? "parallelism." : " x ", key, value);
  };
  if (sp() > 1) name("sp", fmt::format("{} ({})", sp(), sp_algo.value_text()));
  if (tp_sequence_parallel()) name("tp", fmt::format("{} (tp_sequence_parallel)", tp()));
  return keys;
}

}  // namespace llmtrain::parallel
