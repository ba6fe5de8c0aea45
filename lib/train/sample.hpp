#pragma once

#include <cstdint>
#include <string>

namespace llmtrain::train {

/// What the model made of a prompt after a step; one line of samples.jsonl:
/// {"step":500,"prompt":"int ","text":"main() {"}.
struct Sample {
  std::int64_t step = 0;
  std::string prompt, text;
};

}  // namespace llmtrain::train
