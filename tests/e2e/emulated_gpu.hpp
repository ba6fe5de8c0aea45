#pragma once
/// Runs of the executable on the emulated GPU.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/train/metrics.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

/// A variable of the executable's environment, for a while.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

/// A GPU reports a step while it does the next one: a run that is stopped needs some more.
inline constexpr std::uint64_t kLongSteps = 12;
inline constexpr const char* kLongEnough = "training.max_steps=12";
inline constexpr const char* kLongAsPlanned = "12 steps took memory as planned";
inline constexpr const char* kSecondStep = " 2/12 ";

/// kTinyRecipe with short evaluations: an emulated GPU takes its time.
inline std::string tiny_gpu_recipe() {
  std::string recipe(kTinyRecipe);
  constexpr std::string_view kBefore = "eval: {interval: 2";
  return recipe.insert(recipe.find(kBefore) + kBefore.size(), ", max_samples: 8");
}

/// The plugin that the executable finds, and a user's cache that nobody else has.
class Plugin {
 public:
  explicit Plugin(const char* file)
      : file_("LLMTRAIN_CUDA_PLUGIN", file), cache_home_("XDG_CACHE_HOME", cache_.path()) {}
  std::filesystem::path products() const { return cache_.path() / "llmtrain" / "products.txt"; }

 private:
  test::TempDir cache_;
  Variable file_, cache_home_;
};

inline std::vector<double> values_of(const Workspace& here, const std::string& key) {
  std::vector<double> values;
  for (const train::StepRecord& record : here.metrics()) {
    if (const auto value = record.number(key)) values.push_back(*value);
  }
  return values;
}

}  // namespace llmtrain
