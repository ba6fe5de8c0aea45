#include "lib/plan/recompute_budget.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/engine/stages.hpp"
#include "lib/param/placement.hpp"

namespace llmtrain::plan {

namespace {

/// Of a rank's n blocks: the first `whole` as a whole; of those behind, norms and activation
/// functions of the first so many.
struct Choice {
  int whole = 0, norm = 0, activation = 0;
  bool operator==(const Choice&) const = default;
};

struct Measured {
  double bytes = 0;  // of activations, at their peak
  double work = 0;   // of a step
};

/// One rank's part of the policy.
class RankSearch {
 public:
  RankSearch(const engine::EngineOptions& options, std::int64_t samples_per_step,
             const engine::Target& target)
      : options_(options), samples_(samples_per_step), target_(target) {
    const auto num_blocks = static_cast<int>(options.model.num_hidden_layers);
    const Mesh mesh(target.mesh, target.rank, meta_factory(nullptr));
    const engine::Stages stages(mesh, options.pipeline, num_blocks);
    for (int b = 0; b < num_blocks; ++b) {
      if (stages.has_block(b)) blocks_.push_back(b);
    }
    nothing_ = measure({});
  }

  const Measured& nothing() const { return nothing_; }
  /// Sets the rank's blocks in `policy`; returns what is taken then.
  Measured choose(double budget, engine::RecomputePolicy& policy);

 private:
  int size() const { return static_cast<int>(blocks_.size()); }
  void set(const Choice& choice, engine::RecomputePolicy& policy) const;
  Measured measure(const Choice& choice);
  void measure_parts();
  double saving(const Choice& choice) const;
  double work(const Choice& choice) const;
  std::vector<Choice> front() const;

  engine::EngineOptions options_;
  std::int64_t samples_;
  engine::Target target_;
  std::vector<int> blocks_;
  Measured nothing_;
  std::optional<Plan> first_;           // knows the model as a whole
  Measured whole_, norm_, activation_;  // saved and added by one block
};

void RankSearch::set(const Choice& choice, engine::RecomputePolicy& policy) const {
  policy.blocks.resize(static_cast<std::size_t>(options_.model.num_hidden_layers));
  for (int i = 0; i < size(); ++i) {
    engine::BlockRecompute& block =
        policy.blocks[static_cast<std::size_t>(blocks_[static_cast<std::size_t>(i)])];
    block = {.whole = i < choice.whole, .ops = {}};
    if (block.whole) continue;
    if (i < choice.whole + choice.norm) block.ops.insert("norm");
    if (i < choice.whole + choice.activation) block.ops.insert("activation");
  }
}

Measured RankSearch::measure(const Choice& choice) {
  options_.recompute = {};
  set(choice, options_.recompute);
  Plan plan = make_plan(options_, samples_, target_, first_ ? &*first_ : nullptr);
  Measured measured{
      .bytes = static_cast<double>(
          plan.step.peak.per_category[static_cast<std::size_t>(Category::activations)])};
  for (const LaunchGroup& launch : plan.step.launches) {
    measured.work += static_cast<double>(launch.count) *
                     (launch.cost.flops + flops_per_byte(target_.device) * launch.cost.bytes());
  }
  if (!first_) first_ = std::move(plan);
  return measured;
}

// The last block is left out of those that are whole: it would be computed again while all is held.
void RankSearch::measure_parts() {
  const auto of_one = [&](const Choice& choice, int blocks) {
    const Measured all = measure(choice);
    return Measured{.bytes = std::max(0.0, nothing_.bytes - all.bytes) / blocks,
                    .work = std::max(0.0, all.work - nothing_.work) / blocks};
  };
  const int most = std::max(1, size() - 1);
  whole_ = of_one({.whole = most}, most);
  norm_ = of_one({.norm = size()}, size());
  activation_ = of_one({.activation = size()}, size());
}

double RankSearch::saving(const Choice& choice) const {
  return choice.whole * whole_.bytes + choice.norm * norm_.bytes +
         choice.activation * activation_.bytes;
}

double RankSearch::work(const Choice& choice) const {
  return choice.whole * whole_.work + choice.norm * norm_.work +
         choice.activation * activation_.work;
}

// Those that nothing cheaper saves as much as, by growing work and saving.
std::vector<Choice> RankSearch::front() const {
  std::vector<Choice> all;
  for (int whole = 0; whole <= size(); ++whole) {
    for (int norm = 0; norm <= size() - whole; ++norm) {
      for (int activation = 0; activation <= size() - whole; ++activation) {
        all.push_back({whole, norm, activation});
      }
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [this](const Choice& a, const Choice& b) { return work(a) < work(b); });
  std::vector<Choice> best;
  for (const Choice& choice : all) {
    if (best.empty() || saving(choice) > saving(best.back())) best.push_back(choice);
  }
  return best;
}

// What blocks save adds up but for what else is held at the moment of the peak. So the search
// begins where enough should be saved, goes on by halves to where it is, and then back, step by
// step, until too little is saved some times in a row.
Measured RankSearch::choose(double budget, engine::RecomputePolicy& policy) {
  if (size() == 0 || nothing_.bytes <= budget) return nothing_;
  measure_parts();
  const std::vector<Choice> choices = front();
  const auto first = std::partition_point(choices.begin(), choices.end() - 1, [&](const auto& c) {
    return nothing_.bytes - saving(c) > budget;
  });
  auto found = first;
  Measured measured = measure(*found);
  if (measured.bytes > budget) {
    found = choices.end() - 1;
    measured = measure(*found);
    for (auto below = first; measured.bytes <= budget && found - below > 1;) {
      const auto middle = below + (found - below) / 2;
      const Measured of_middle = measure(*middle);
      if (of_middle.bytes > budget) {
        below = middle;
      } else {
        found = middle;
        measured = of_middle;
      }
    }
  }
  constexpr int kInARow = 4;
  auto before = found;
  for (int missed = 0; measured.bytes <= budget && before != choices.begin() && missed < kInARow;) {
    const Measured less = measure(*--before);
    if (less.bytes > budget) {
      ++missed;
      continue;
    }
    missed = 0;
    found = before;
    measured = less;
  }
  set(*found, policy);
  return measured;
}

}  // namespace

namespace {

/// Of the ranks that share layers, the first one with the most rows of the vocabulary, which is all
/// that they divide unevenly.
int fullest_of_tp(const engine::EngineOptions& options, const MeshShape& mesh) {
  const std::int64_t rows = options.model.vocab_size;
  const int parts = mesh[Axis::tp];
  constexpr std::array kAxis{Axis::tp};
  for (int part = 0; part < parts; ++part) {
    if (uneven_begin(rows, parts, part + 1) - uneven_begin(rows, parts, part) ==
        largest_uneven_part(rows, parts)) {
      return group_of(mesh, 0, kAxis)[static_cast<std::size_t>(part)];
    }
  }
  return 0;
}

}  // namespace

double flops_per_byte(DeviceKind device) { return device == DeviceKind::cuda ? 300 : 4; }

BudgetedRecompute recompute_within(engine::EngineOptions options, std::int64_t samples_per_step,
                                   engine::Target target, const recipe::SizeOrShare& budget) {
  options.recompute = {};
  if (target.mesh[Axis::pp] == 1) {  // all micro-batches are alike, and one comes after the other
    samples_per_step = options.micro_batch_size * target.mesh[Axis::dp];
    options.virtual_workers = 0;
  }
  constexpr std::array kAxis{Axis::pp};
  std::vector<RankSearch> ranks;
  BudgetedRecompute result;
  for (const int rank : group_of(target.mesh, fullest_of_tp(options, target.mesh), kAxis)) {
    target.rank = rank;
    const RankSearch& search = ranks.emplace_back(options, samples_per_step, target);
    result.whole_bytes =
        std::max(result.whole_bytes, static_cast<std::uint64_t>(search.nothing().bytes));
  }
  result.budget_bytes = budget.bytes.value_or(
      static_cast<std::uint64_t>(budget.share * static_cast<double>(result.whole_bytes)));
  for (RankSearch& search : ranks) {
    const Measured chosen = search.choose(static_cast<double>(result.budget_bytes), result.policy);
    result.bytes = std::max(result.bytes, static_cast<std::uint64_t>(chosen.bytes));
    result.added_work = std::max(result.added_work, chosen.work / search.nothing().work - 1);
  }
  return result;
}

std::string to_string(const BudgetedRecompute& budgeted) {
  return fmt::format("{}: {} of {} ({} without), {:.1f} % more work", to_string(budgeted.policy),
                     format_bytes(budgeted.bytes), format_bytes(budgeted.budget_bytes),
                     format_bytes(budgeted.whole_bytes), 100 * budgeted.added_work);
}

}  // namespace llmtrain::plan
