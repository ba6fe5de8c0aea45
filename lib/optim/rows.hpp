#pragma once
/// The rows of the optimizer table, one per source file of the same name.

#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

OptimizerRow adamw();
OptimizerRow adam();
OptimizerRow sgd();
OptimizerRow momentum();
OptimizerRow muon();
OptimizerRow adam_mini();
OptimizerRow nesterov();
OptimizerRow adagrad();
OptimizerRow rmsprop();
OptimizerRow amsgrad();
OptimizerRow lion();
OptimizerRow adamw_8bit();
OptimizerRow lion_8bit();
OptimizerRow adafactor();
OptimizerRow came();
OptimizerRow sm3();
OptimizerRow galore();
OptimizerRow ldadamw();
OptimizerRow q_galore();

}  // namespace llmtrain::optim
