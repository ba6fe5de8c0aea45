#pragma once
/// A small program's recipe, with every kind of key.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/recipe/load.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::recipe::sample {

enum class Norm { layer, rms };

struct AdamOptions : Section {
  Key<std::vector<double>> betas{
      this, "betas", {0.9, 0.95}, "decay of the two moments", length(2) & at_least(0) & below(1)};
  Key<double> eps{this, "eps", 1e-8, "added to the root", above(0)};
};

struct SgdOptions : Section {
  Key<double> momentum{this, "momentum", 0.0, "share of the last update", between(0, 1)};
};

struct OptimizerRow {
  std::string_view name, doc;
  std::unique_ptr<Section> (*options)();
};
inline constexpr OptimizerRow kOptimizers[] = {
    {"adamw", "Adam with decoupled decay", &section_of<AdamOptions>},
    {"sgd", "gradient descent", &section_of<SgdOptions>},
    {"none", "no update", nullptr}};

struct InitOptions : Section {
  Key<double> std{this, "std", 0.02, "standard deviation", above(0)};
  Key<bool> scaled{this, "scaled", true, "smaller at the ends of residual branches"};
};

struct ModelOptions : Section {
  Required<int> hidden_size{this, "hidden_size", "width", at_least(1)};
  Key<int> num_attention_heads{this, "num_attention_heads", 8, "heads", at_least(1)};
  Key<Norm> norm{this, "norm", Norm::rms, "kind of norm",
                 one_of<Norm>({{"layer_norm", Norm::layer}, {"rms_norm", Norm::rms}})};
  Sub<InitOptions> init{this, "init", "how weights start"};

  void validate(Issues& issues) const override {
    if (hidden_size() % num_attention_heads() != 0) {
      issues.add(num_attention_heads, "must divide model.hidden_size", "8 divides 64");
    }
  }
};

struct SourceOptions : Section {
  Required<std::string> path{this, "path", "file or folder", not_empty()};
  Key<std::optional<double>> weight{this, "weight", {}, "share; null = by size", above(0)};
};

struct DataOptions : Section {
  List<SourceOptions> sources{this, "sources", "training text"};
  Key<Bytes> cache{this, "cache", Bytes(1 << 20), "cache size"};
};

struct RampOptions : Section {
  Required<Count> start{this, "start", "first batch size"};
  Key<Count> samples{this, "samples", 1000, "length of the ramp"};
};

struct TrainingOptions : Section {
  Key<int> seq_len{this, "seq_len", 128, "tokens of a sample", at_least(1) & unit("tokens")};
  Key<Auto<int>> micro_batch_size{
      this, "micro_batch_size", {}, "samples per step and rank", at_least(1)};
  Key<std::optional<Count>> max_tokens{this, "max_tokens", {}, "length"};
  Key<std::optional<Duration>> max_time{this, "max_time", {}, "length"};
  OptionalSub<RampOptions> ramp{this, "ramp", "growing batches"};
};

struct OptimizerOptions : Section {
  Choice<OptimizerRow> name{this, "name", kOptimizers, "adamw", "which optimizer"};
  Key<double> lr{this, "lr", 3e-4, "peak learning rate", at_least(0)};
  Key<std::optional<double>> max_grad_norm{this, "max_grad_norm", 1.0, "null = off", above(0)};
};

struct SchedulerOptions : Section {
  Key<Span> warmup{this, "warmup", Span::percents(1), "rise to the peak"};
  Key<Interval> interval{this, "interval", Interval::every_steps(100), "how often"};
};

struct RunOptions : Section {
  Key<std::string> name{this, "name", "run", "name of the run"};
  Key<std::uint64_t> seed{this, "seed", 42, "of everything random"};
  Key<std::vector<std::string>> tags{this, "tags", {"a", "b"}, "free words"};
  Key<bool> verbose{this, "verbose", false, "say more"};
};

struct Root : Section {
  Sub<RunOptions> run{this, "run", "the run"};
  Sub<ModelOptions> model{this, "model", "the model"};
  Sub<DataOptions> data{this, "data", "the text"};
  Sub<TrainingOptions> training{this, "training", "the loop"};
  Sub<OptimizerOptions> optimizer{this, "optimizer", "the update"};
  Sub<SchedulerOptions> lr_scheduler{this, "lr_scheduler", "the learning rate over time"};
};

inline LoadRequest request(std::string text, std::vector<std::string> overrides = {}) {
  LoadRequest request;
  request.file = "r.yaml";
  request.text = std::move(text);
  request.overrides = std::move(overrides);
  return request;
}

/// All issues, one line each.
inline std::vector<std::string> issues_of(Section& root, const LoadRequest& request) {
  std::vector<std::string> lines;
  for (const Issue& issue : check(root, request)) lines.push_back(issue.text());
  return lines;
}

inline std::vector<std::string> issues_of(const std::string& text,
                                          std::vector<std::string> overrides = {}) {
  Root root;
  return issues_of(root, request(text, std::move(overrides)));
}

}  // namespace llmtrain::recipe::sample
