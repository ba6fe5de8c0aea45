#include "lib/train/prepare_share.hpp"

#include <cstdlib>
#include <tuple>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace llmtrain::train {

namespace {

struct SlurmArray {
  SlurmArray(const char* id, const char* min, const char* count, const char* step) {
    set("SLURM_ARRAY_TASK_ID", id);
    set("SLURM_ARRAY_TASK_MIN", min);
    set("SLURM_ARRAY_TASK_COUNT", count);
    set("SLURM_ARRAY_TASK_STEP", step);
  }
  ~SlurmArray() {
    for (const char* name : {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN",
                             "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_STEP"}) {
      ::unsetenv(name);
    }
  }

 private:
  static void set(const char* name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  }
};

}  // namespace

TEST_CASE("a share is a task and the number of tasks") {
  CHECK(parse_share("0/1").count == 1);
  CHECK(parse_share("3/8").index == 3);
  CHECK(parse_share("3/8").count == 8);
  for (const char* bad : {"", "3", "/8", "3/", "8/8", "-1/8", "1/8x", "1 /8", "0/0", "1/2/3"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_share(bad), RecipeError);
  }
  // Shares of all tasks are everything, once.
  for (std::size_t item = 0; item < 20; ++item) {
    int owners = 0;
    for (std::size_t task = 0; task < 7; ++task) owners += data::Share{task, 7}.has(item) ? 1 : 0;
    CHECK(owners == 1);
    CHECK(data::Share{}.has(item));
    CHECK(!data::Share::nothing().has(item));
  }
}

TEST_CASE("a task of a Slurm array has the share of its place in the range") {
  {
    const SlurmArray array("5", "0", "8", nullptr);
    CHECK(slurm_share().index == 5);
    CHECK(slurm_share().count == 8);
  }
  {
    const SlurmArray array("7", "1", "4", "2");  // --array=1-7:2
    CHECK(slurm_share().index == 3);
    CHECK(slurm_share().count == 4);
  }
  for (const auto& [id, min, count, step] :
       {std::tuple{"9", "1", "3", "1"},  // --array=1,5,9 is no range
        std::tuple{"2", "1", "4", "2"},  // not in it
        std::tuple{"0", "1", "4", "1"},  // before it
        std::tuple{"x", "0", "4", "1"}}) {
    const SlurmArray array(id, min, count, step);
    CHECK_THROWS_AS(slurm_share(), RecipeError);
  }
  CHECK_THROWS_AS(slurm_share(), RecipeError);
}

}  // namespace llmtrain::train
