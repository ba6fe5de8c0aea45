#pragma once

#include <string>

#include "lib/base/error.hpp"

namespace llmtrain {

/// What a part of the program that knows no recipe has against the value of one's key. Whoever does
/// know it says at which line that stands (recipe::judge_value).
class RefusedKey : public RecipeError {
 public:
  /// "parallelism.tp", "3 cannot share 4 heads", "2 and 4 can".
  RefusedKey(std::string key, std::string problem, std::string remedy)
      : RecipeError(key + ": " + problem + " (" + remedy + ")"),
        key_(std::move(key)),
        problem_(std::move(problem)),
        remedy_(std::move(remedy)) {}

  const std::string& key() const { return key_; }
  const std::string& problem() const { return problem_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string key_, problem_, remedy_;
};

}  // namespace llmtrain
