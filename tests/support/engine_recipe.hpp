#pragma once
/// The sections of a recipe that make an engine.

#include "lib/engine/engine.hpp"
#include "lib/optim/lr_schedule.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::test {

struct EngineRecipe : recipe::Section {
  recipe::Sub<models::ModelSection> model{this, "model", "model"};
  recipe::Sub<engine::TrainingSection> training{this, "training", "training"};
  recipe::Sub<engine::PrecisionSection> precision{this, "precision", "precision"};
  recipe::Sub<engine::ActivationCheckpointSection> activation_checkpoint{
      this, "activation_checkpoint", "recompute"};
  recipe::Sub<optim::OptimizerOptions> optimizer{this, "optimizer", "optimizer"};

  engine::EngineOptions options(std::uint64_t seed) const {
    return engine::EngineOptions::from(model, training, precision, activation_checkpoint, optimizer,
                                       seed);
  }
};

/// The same with a schedule.
struct TrainingRecipe : EngineRecipe {
  recipe::Sub<optim::LrSchedulerOptions> lr_scheduler{this, "lr_scheduler", "learning rate"};
};

}  // namespace llmtrain::test
