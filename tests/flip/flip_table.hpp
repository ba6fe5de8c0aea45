#pragma once
/// One row per recipe key: how to flip it, and what that must change.

#include <span>
#include <string_view>
#include <vector>

#include "tests/flip/observe.hpp"

namespace llmtrain::test {

struct Flip {
  /// Path in the schema, with `*` for list elements.
  std::string_view key;
  /// Each of them must differ between all settings of the row. Empty: the settings are names of one
  /// thing, and nothing may differ.
  std::vector<Sight> sights;
  /// Settings that the key needs before and after, on top of kBaseRecipe and of what the schema
  /// says the key goes with. Overrides are separated by " | ".
  std::string_view base = {};
  /// Other settings: each changes the key, and companions where it cannot stand alone. Empty: every
  /// other name that the key may have.
  std::vector<std::string> flips = {};
  /// For the key where this is chosen ("model.architecture: gpt2"); empty: for all without such a
  /// row.
  std::string_view with = {};
  /// The settings are compared in a directory that already holds a run.
  bool after_a_run = false;
};

/// A run of four steps in a few milliseconds.
extern const std::string_view kBaseRecipe;

std::span<const Flip> flip_table();
/// Its rows of the model.
std::span<const Flip> model_flips();
/// Its rows of optimizers.
std::span<const Flip> optimizer_flips();
/// Its rows of precision.
std::span<const Flip> precision_flips();
/// Its rows of data.cleaning.
std::span<const Flip> cleaning_flips();
/// Its rows of slurm, and of what a job of it does at its end and its restarts.
std::span<const Flip> job_flips();
/// Its rows of steps that go wrong.
std::span<const Flip> bad_step_flips();
/// Of what is written while training.
std::span<const Flip> record_flips();

}  // namespace llmtrain::test
