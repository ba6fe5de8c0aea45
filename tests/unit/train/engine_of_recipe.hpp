#pragma once
/// The engine of a recipe's text and overrides, on the CPU, with weights of its own seed.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engine/engine.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

using Overrides = std::vector<std::string>;

struct EngineOfRecipe {
  EngineOfRecipe(std::string_view text, std::uint64_t seed, const Overrides& overrides,
                 int threads = 1) {
    recipe::load(recipe, {.file = "test.yaml", .text = std::string(text), .overrides = overrides});
    engine::EngineOptions options = recipe.engine_options();
    options.seed = seed;
    engine = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = &device, .table = &kernels::cpu_table(), .threads = threads},
        options);
    engine->initialize();
  }

  Recipe recipe;
  Device device{make_cpu_memory(), 1 << 27};
  std::unique_ptr<engine::Engine> engine;
};

}  // namespace llmtrain::train
