#pragma once
/// The layouts that must train as one rank does.

#include <string>
#include <string_view>
#include <vector>

#include "tests/mesh/probe_run.hpp"

namespace llmtrain::test {

/// What a layout is tried on; `overrides` change the recipe of the layout and of one rank alike.
struct Layout {
  int ranks;
  std::string_view model;
  /// Of the run on several ranks alone, separated by " | ".
  std::string_view parallelism;
  /// Of both.
  std::string_view overrides = "";
  /// Among the few that stand for all where there is little time.
  bool quick = false;
  /// Of both: all tokens are the same, so that all go to the same experts, and the ranks of Mesh::
  /// experts() that have none of these get no token.
  bool one_word = false;
};

const std::vector<ProbeModel>& probe_models();
const ProbeModel& model_of(const Layout& layout);
/// Of the recipe, for a run on several ranks or for the one that it is compared with; and with the
/// other arguments of mesh_probe.
std::vector<std::string> overrides_of(const Layout& layout, bool ranks);
std::vector<std::string> arguments_of(const Layout& layout, bool ranks);
std::string title_of(const Layout& layout);
/// Every axis, every schedule of pipelines and every way to share sequences is in a quick one, too.
const std::vector<Layout>& layouts();
/// The parts of that: models without experts, the schedules of their pipelines, models with
/// experts, and optimizers that work in subspaces.
const std::vector<Layout>& dense_layouts();
const std::vector<Layout>& pipeline_layouts();
const std::vector<Layout>& expert_layouts();
const std::vector<Layout>& projected_layouts();
/// Those that are tried on GPUs, too.
const std::vector<Layout>& gpu_layouts();

}  // namespace llmtrain::test
