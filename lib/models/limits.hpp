#pragma once
/// The largest sizes that a recipe or a config.json may ask for: beyond them a number is a mistake.

#include <cstdint>

namespace llmtrain::models::limits {

inline constexpr std::int64_t kVocabSize = std::int64_t{1} << 30;
inline constexpr std::int64_t kHiddenSize = std::int64_t{1} << 20;
inline constexpr std::int64_t kIntermediateSize = std::int64_t{1} << 22;
inline constexpr std::int64_t kLayers = 4096;
inline constexpr std::int64_t kHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kExperts = std::int64_t{1} << 16;
inline constexpr std::int64_t kHeadDim = std::int64_t{1} << 16;
inline constexpr std::int64_t kPositions = std::int64_t{1} << 30;

}  // namespace llmtrain::models::limits
