// What the keys of a layout make of the ranks of a job.
#include "lib/parallel/parallelism_section.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/recipe/load.hpp"

namespace llmtrain::parallel {

namespace {

struct Layout : recipe::Section {
  recipe::Sub<ParallelismSection> parallelism{this, "parallelism", "layout"};
};

recipe::LoadRequest with(const std::string& keys) {
  return {.file = "r.yaml", .text = fmt::format("parallelism: {{{}}}", keys)};
}

// "dp 2 tp 4 pp 1 sp 1 ep 1" on so many ranks.
std::string sizes(const std::string& keys, int ranks) {
  Layout layout;
  recipe::load(layout, with(keys));
  layout.parallelism.take_rest(ranks);
  const MeshShape shape = layout.parallelism.shape(ranks);
  CHECK(shape.world_size() == ranks);
  return fmt::format("dp {} tp {} pp {} sp {} ep {}", shape[Axis::dp], shape[Axis::tp],
                     shape[Axis::pp], shape[Axis::sp], shape.ep);
}

std::string problems(const std::string& keys) {
  Layout layout;
  std::string text;
  for (const recipe::Issue& issue : recipe::check(layout, with(keys))) text += issue.text() + "\n";
  return text;
}

}  // namespace

TEST_CASE("one axis may take the ranks that the others leave") {
  CHECK(sizes("", 8) == "dp 8 tp 1 pp 1 sp 1 ep 1");
  CHECK(sizes("tp: 2, pp: 2", 8) == "dp 2 tp 2 pp 2 sp 1 ep 1");
  CHECK(sizes("dp: 2, tp: -1", 8) == "dp 2 tp 4 pp 1 sp 1 ep 1");
  CHECK(sizes("dp: 1, tp: 2, pp: -1", 8) == "dp 1 tp 2 pp 4 sp 1 ep 1");
  CHECK(sizes("dp: 3, sp: -1, tp: 2", 24) == "dp 3 tp 2 pp 1 sp 4 ep 1");
  CHECK(sizes("dp: 1, tp: -1", 1) == "dp 1 tp 1 pp 1 sp 1 ep 1");
  // Experts are shared by ranks that dp and sp have already, so both may be -1.
  CHECK(sizes("ep: -1, tp: 2", 8) == "dp 4 tp 2 pp 1 sp 1 ep 4");
  CHECK(sizes("dp: 2, sp: -1, ep: -1", 8) == "dp 2 tp 1 pp 1 sp 4 ep 8");
  CHECK(sizes("ep: -1, zero: 1, dp_replicate: 2", 8) == "dp 8 tp 1 pp 1 sp 1 ep 4");
}

TEST_CASE("keys of stages are refused once, by one rule, where there is no pipeline") {
  for (const std::string keys : {"pp_layers: [1, 1]", "pp_layers: [2]", "pp_costs: [1, 1, 1]",
                                 "pp_stages: [embed_tokens layers.0, layers.1 norm lm_head]",
                                 "pp_stages: [embed_tokens layers.0-1 norm lm_head]"}) {
    CAPTURE(keys);
    Layout layout;
    CHECK(problems(keys).find("parallelism.pp is 1") != std::string::npos);
    recipe::check(layout, with(keys));
    recipe::Issues issues;
    layout.parallelism.validate_blocks(issues, 2);
    CHECK(issues.empty());
  }
}

TEST_CASE("costs of a stage are for a schedule that is ordered by them") {
  CHECK(problems("pp: 2, pp_schedule: v_half, pp_costs: [1, 1.6, 0.4]").empty());
  CHECK(problems("pp: 2, pp_schedule: zbv, pp_costs: [1, 1.6, 0.4]")
            .find("zbv has one order, whatever they are") != std::string::npos);
  CHECK(
      problems("pp: 2, pp_schedule: v_half, pp_costs: [1, 1.6]").find("F, I and W have one each") !=
      std::string::npos);
  CHECK(problems("pp: 2, pp_schedule: v_half, pp_costs: [1, 1, 0]").find("pp_costs") !=
        std::string::npos);
}

TEST_CASE("sequences divide by what sp cuts and by what tp shares of a rank's rows, no further") {
  const auto parts = [](const std::string& keys) {
    Layout layout;
    recipe::load(layout, with(keys));
    return layout.parallelism.sequence_parts();
  };
  CHECK(parts("sp: 3") == 6);
  CHECK(parts("sp: 3, sp_algo: ulysses") == 3);
  CHECK(parts("sp: 2, tp: 2, tp_sequence_parallel: true") == 4);
  CHECK(parts("sp: 2, tp: 3, tp_sequence_parallel: true") == 12);
  CHECK(parts("sp: 2, tp: 4, tp_sequence_parallel: true") == 8);
  CHECK(parts("sp: 2, tp: 4") == 4);
}

TEST_CASE("a size that was taken says of whom, and the axis is no longer open") {
  Layout layout;
  recipe::load(layout, with("dp: 2, pp: -1"));
  CHECK(layout.parallelism.rest_axis() == "pp");
  CHECK(layout.parallelism.least_ranks() == 2);
  layout.parallelism.take_rest(6);
  CHECK(layout.parallelism.pp() == 3);
  CHECK(layout.parallelism.pp.where() == "the rest of 6 ranks");
  CHECK(layout.parallelism.rest_axis().empty());
  layout.parallelism.take_rest(6);
  CHECK(layout.parallelism.pp() == 3);
  // dp is open for ever: any number of ranks may go on.
  Layout data;
  recipe::load(data, with("tp: 2"));
  data.parallelism.take_rest(6);
  CHECK(data.parallelism.dp() == kRest);
}

TEST_CASE("two axes that take the rest are refused, and so is none") {
  const std::string by_default = problems("tp: -1");
  CHECK(by_default.find("r.yaml:1:19: parallelism.tp: takes the ranks that are left, and so does "
                        "parallelism.dp: -1 (its default) (give one of them a number: "
                        "parallelism.dp=1, say)") != std::string::npos);
  CHECK(problems("dp: -1, pp: -1").find("parallelism.dp: -1 (give") != std::string::npos);
  CHECK(problems("dp: 2, tp: -1, sp: -1").find("parallelism.sp: takes the ranks") !=
        std::string::npos);
  CHECK(problems("dp: 2, tp: -1").empty());
  CHECK(problems("ep: -1").empty());
  for (const char* axis : {"dp", "tp", "pp", "sp", "ep"}) {
    CAPTURE(std::string(axis));
    CHECK(problems(fmt::format("{}: 0", axis)).find("is a number of ranks") != std::string::npos);
    CHECK(problems(fmt::format("{}: -2", axis)).find("must be >= -1") != std::string::npos);
  }
  CHECK(problems("dp_replicate: -1, zero: 1").find("must be >= 1") != std::string::npos);
  CHECK(problems("dp: 1000, tp: 1024, pp: 2").find("makes a job of 2048000 ranks") !=
        std::string::npos);
}

TEST_CASE("axes that do not divide the ranks are refused with the nearest that do") {
  const auto refused = [](const std::string& keys, int ranks, const char* message) {
    CAPTURE(keys);
    CHECK_THROWS_WITH_AS(sizes(keys, ranks), doctest::Contains(message), RecipeError);
  };
  refused("tp: 3", 8,
          "r.yaml:1:19: parallelism.tp: 3 does not divide the job's 8 ranks (start 6 or 9, as "
          "mpirun -n 9 llmtrain run ..., or choose sizes that do: 2 or 4)");
  refused("dp: 3, pp: -1", 8, "r.yaml:1:19: parallelism.dp: 3 does not divide the job's 8 ranks");
  refused("dp: 2, tp: 3, sp: -1", 8,
          "r.yaml:1:26: parallelism.tp: 3 with dp 2 does not divide the job's 8 ranks (start 6 or "
          "12, as mpirun -n 12 llmtrain run ..., or choose sizes that do, as a product: 4 or 8)");
  refused("dp: 16, tp: -1", 8,
          "parallelism.dp: 16 does not divide the job's 8 ranks (start 16, as mpirun -n 16 "
          "llmtrain run ..., or choose sizes that do: 8)");
  refused("dp: 3, tp: 2", 4,
          "r.yaml:1:19: parallelism.dp: 3 with tp 2 takes 6 ranks, and the job has 4 ranks (start "
          "6, as mpirun -n 6 llmtrain run ..., or set parallelism.dp=-1)");
  refused("dp: 2, tp: 2, ep: 3", 4, "parallelism.ep: 3 does not divide the 2 ranks of dp x sp");
  refused("ep: -1, zero: 1, dp_replicate: 3", 8,
          "parallelism.dp_replicate: 3 does not divide the 8 ranks of dp (2 and 4 do)");
}

}  // namespace llmtrain::parallel
