#pragma once
/// What plans say that ranks send, beside the formulas of papers.

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lib/plan/plan.hpp"
#include "tests/support/textbook/textbook.hpp"

namespace llmtrain::test {

/// By place along tp and pp, the mean over its data ranks.
using PlannedVolumes = std::map<std::pair<int, int>, SentVolumes>;

inline PlannedVolumes planned_volumes(const TextbookRun& run, engine::Target target) {
  const MeshShape& mesh = run.mesh;
  const std::int64_t samples = run.options.micro_batch_size * run.micro_batches * mesh[Axis::dp];
  PlannedVolumes volumes;
  std::optional<plan::Plan> first;
  target.mesh = mesh;
  for (target.rank = 0; target.rank < mesh.world_size(); ++target.rank) {
    plan::Plan plan = plan::make_plan(run.options, samples, target, first ? &*first : nullptr);
    const MeshCoordinate at = coordinate_of(mesh, target.rank);
    SentVolumes& sent = volumes[{at[static_cast<int>(Axis::tp)], at[static_cast<int>(Axis::pp)]}];
    for (const plan::CollectiveGroup& calls : plan.step.collectives) {
      if (calls.sent_bytes() == 0) continue;
      sent[{calls.kind, calls.group}] += calls.sent_bytes() / (mesh[Axis::dp] * mesh[Axis::sp]);
    }
    if (!first) first = std::move(plan);
  }
  return volumes;
}

/// What differs, one line each; empty if nothing does.
inline std::string differences(const TextbookRun& run, const PlannedVolumes& planned) {
  std::string lines;
  for (const auto& [place, of_place] : planned) {
    std::map<std::pair<Collective, std::string>, std::pair<double, double>> both;
    for (const auto& [call, bytes] : of_place) both[call].first = bytes;
    for (const auto& [call, bytes] : textbook_volumes(run, place.first, place.second)) {
      both[call].second = bytes;
    }
    for (const auto& [call, bytes] : both) {
      if (std::abs(bytes.first - bytes.second) < 0.5) continue;
      lines += fmt::format("{} on {} at tp {}, pp {}: {} B by the textbook, {} B planned\n",
                           to_string(call.first), call.second, place.first, place.second,
                           bytes.second, bytes.first);
    }
  }
  return lines;
}

}  // namespace llmtrain::test
