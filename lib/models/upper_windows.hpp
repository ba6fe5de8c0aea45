#pragma once
/// Qwen's sliding window: the lower layers see whole documents, the upper ones a window.

#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

inline constexpr std::int64_t kMaxWindowLayers = 28;  // where config.json has no such key

struct UpperWindowOptions : LlamaLikeOptions {
  recipe::Key<std::optional<recipe::Count>> sliding_window{
      this, "sliding_window", std::nullopt,
      "tokens that attention sees in the upper layers, the query's own included; null = the whole "
      "document",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
  recipe::Key<recipe::Count> max_window_layers{
      this, "max_window_layers", recipe::Count{kMaxWindowLayers},
      "lower layers that see the whole document even so", recipe::between(0, limits::kLayers)};

  void validate(recipe::Issues& issues) const override;
  /// llama_like_spec with the windows.
  DecoderSpec windowed_spec() const;
};

/// use_sliding_window, sliding_window, max_window_layers and layer_types.
void read_upper_windows(HfConfigReader& config, DecoderSpec& spec);
void write_upper_windows(HfConfigWriter& config, const DecoderSpec& spec);

}  // namespace llmtrain::models
