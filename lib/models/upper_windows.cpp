#include "lib/models/upper_windows.hpp"

namespace llmtrain::models {

void UpperWindowOptions::validate(recipe::Issues& issues) const {
  LlamaLikeOptions::validate(issues);
  if (sliding_window() && max_window_layers() >= num_hidden_layers()) {
    issues.add(max_window_layers,
               fmt::format("leaves none of {} layers to sliding_window; lower it, or remove "
                           "sliding_window",
                           num_hidden_layers().value));
  }
}

DecoderSpec UpperWindowOptions::windowed_spec() const {
  DecoderSpec spec = llama_like_spec();
  spec.first_window_layer = static_cast<std::int64_t>(max_window_layers().value);
  if (sliding_window()) {
    spec.sliding_window = static_cast<std::int64_t>(sliding_window()->value);
  }
  return spec;
}

void read_upper_windows(HfConfigReader& config, DecoderSpec& spec) {
  const bool windowed = config.flag("use_sliding_window", false);
  const std::int64_t window = config.size("sliding_window", limits::kPositions, 4096);
  if (windowed && !config.is_null("sliding_window")) spec.sliding_window = window;
  spec.first_window_layer = config.count("max_window_layers", limits::kLayers, kMaxWindowLayers);
  config.only_layer_types(spec, "only what max_window_layers says is implemented");
}

void write_upper_windows(HfConfigWriter& config, const DecoderSpec& spec) {
  config.set_layer_types(spec);
  config.set("max_window_layers", spec.first_window_layer);
  config.set("use_sliding_window", spec.sliding_window > 0);
  if (spec.sliding_window > 0) {
    config.set("sliding_window", spec.sliding_window);
  } else {
    config.set_null("sliding_window");
  }
}

}  // namespace llmtrain::models
