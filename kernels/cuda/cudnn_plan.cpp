// From an operation graph to a plan: what the library proposes, and what of it may be taken.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/cuda/cudnn_graph.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Most that are looked at; for attention there are fewer than ten.
constexpr std::int64_t kMaxCandidates = 32;

CudnnCandidate describe(const CudnnApi& api, CudnnDescriptor config) {
  CudnnDescriptor engine(api, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t into = engine.get();
  config.read(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &into);
  CudnnCandidate candidate{.config = std::move(config)};
  engine.read(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &candidate.engine);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const std::int64_t count =
      engine.read(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                  static_cast<std::int64_t>(notes.size()), notes.data());
  const auto end = notes.begin() + std::min<std::int64_t>(count, std::ssize(notes));
  candidate.deterministic =
      std::find(notes.begin(), end, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == end;
  std::int64_t bytes = 0;
  candidate.config.read(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
  candidate.workspace_bytes = static_cast<std::uint64_t>(bytes);
  return candidate;
}

CudnnPlan make_plan(const CudnnApi& api, const CudnnDescriptor& config, const CudnnTarget& target) {
  CudnnPlan result{.plan = CudnnDescriptor(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
  result.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (target.handle != nullptr) {
    result.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  if (target.device != nullptr) {
    result.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
  }
  result.plan.finalize();
  std::int64_t bytes = 0;
  result.plan.read(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
  result.workspace_bytes = static_cast<std::uint64_t>(bytes);
  return result;
}

}  // namespace

std::vector<CudnnCandidate> cudnn_candidates(const CudnnApi& api, const CudnnDescriptor& graph,
                                             const CudnnTarget& target) {
  CudnnDescriptor heuristic(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.device != nullptr) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
  heuristic.finalize();
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> into;
  for (std::int64_t i = 0; i < kMaxCandidates; ++i) {
    configs.emplace_back(api, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    into.push_back(configs.back().get());
  }
  const std::int64_t count = heuristic.read(
      CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMaxCandidates, into.data());
  std::vector<CudnnCandidate> candidates;
  for (std::int64_t i = 0; i < std::min(count, kMaxCandidates); ++i) {
    candidates.push_back(describe(api, std::move(configs[static_cast<std::size_t>(i)])));
  }
  if (candidates.empty()) throw CudnnRefusal("cuDNN has no engine for this");
  return candidates;
}

CudnnPlan cudnn_plan(const CudnnApi& api, const CudnnDescriptor& graph, const CudnnTarget& target,
                     const CudnnPlanLimits& limits) {
  std::string reasons;
  bool for_workspace = false;
  const auto pass_over = [&](const CudnnCandidate& candidate, std::string_view why) {
    reasons += fmt::format("{}engine {} {}", reasons.empty() ? "" : "; ", candidate.engine, why);
  };
  for (const CudnnCandidate& candidate : cudnn_candidates(api, graph, target)) {
    if (limits.deterministic && !candidate.deterministic) {
      pass_over(candidate, "is not deterministic");
      continue;
    }
    std::uint64_t bytes = candidate.workspace_bytes;
    if (bytes <= limits.workspace_bytes) {
      try {
        CudnnPlan plan = make_plan(api, candidate.config, target);
        bytes = plan.workspace_bytes;
        if (bytes <= limits.workspace_bytes) return plan;
      } catch (const CudnnRefusal& refusal) {
        pass_over(candidate, refusal.what());
        continue;
      }
    }
    for_workspace = true;
    pass_over(candidate, fmt::format("needs {} of run.library_workspace, which has {}",
                                     format_bytes(bytes), format_bytes(limits.workspace_bytes)));
  }
  throw CudnnRefusal(reasons, for_workspace);
}

}  // namespace llmtrain::kernels::cuda
