// Plans of all layouts, which scripts/mesh.sh alone runs all of, against the formulas of papers.
#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/train/device.hpp"
#include "lib/train/recipe.hpp"
#include "tests/mesh/layouts.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/textbook/planned.hpp"

namespace llmtrain::test {

TEST_CASE("the plan of every layout says what the textbook does") {
  const TempDir scratch;
  for (const std::string precision : {"fp64", "fp32", "bf16"}) {
    CAPTURE(precision);
    for (const Layout& layout : layouts()) {
      CAPTURE(title_of(layout));
      write_file_atomic(scratch / "r.yaml", model_of(layout).yaml);
      std::vector<std::string> overrides = overrides_of(layout, true);
      overrides.push_back("precision.compute=" + precision);
      const auto recipe = train::load_recipe(scratch / "r.yaml", overrides);
      recipe->enter({.size = layout.ranks, .local_size = layout.ranks});
      const MeshShape mesh = recipe->mesh_shape();
      REQUIRE(mesh.world_size() == layout.ranks);
      const engine::EngineOptions options = recipe->engine_options();
      const std::int64_t micro_batches =
          recipe->geometry().global_batch_size() / options.micro_batch_size / mesh[Axis::dp];
      const TextbookRun run{options, mesh, static_cast<int>(micro_batches)};
      CHECK(differences(run, planned_volumes(run, train::target_of(*recipe))) == "");
    }
  }
}

}  // namespace llmtrain::test
