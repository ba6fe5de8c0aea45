#pragma once
/// Decoding of one sequence with a KV cache.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/engine/engine.hpp"

namespace llmtrain::engine {

/// Holds the cache of one sequence; the engine outlives it.
class DecoderSession {
 public:
  DecoderSession(Engine& engine, std::int64_t capacity);

  /// Runs the model over the next tokens of the sequence; logits of the one that follows the last,
  /// [vocab_size].
  std::vector<float> append(std::span<const std::int32_t> tokens);
  std::int64_t length() const { return length_; }

 private:
  Engine* engine_;
  std::int64_t length_ = 0;
  std::vector<ops::KvCache> caches_;  // per layer
};

}  // namespace llmtrain::engine
