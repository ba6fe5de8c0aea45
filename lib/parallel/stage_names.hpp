#pragma once
/// Stages of a pipeline by the names of their layers.

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace llmtrain::parallel {

/// What is wrong with the names, and what mends it.
struct NamesMistake {
  std::string problem, remedy;
};

/// Blocks of each stage, of a model with `num_blocks`. A stage is a text of names, between spaces
/// or commas, as those of parameters begin: "embed_tokens", "layers.3", "layers.3-7", "norm",
/// "lm_head"; "model." before them may be there. Each layer has one stage, all follow one another
/// in the model's order, embed_tokens is on the first stage, norm and lm_head are on the last one.
/// Stages count from 0.
std::variant<std::vector<std::int64_t>, NamesMistake> blocks_of_names(
    std::span<const std::string> stages, std::int64_t num_blocks);

}  // namespace llmtrain::parallel
