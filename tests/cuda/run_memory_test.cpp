// What a run on a GPU takes before its first step, and what its plan knows of it.
#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/plan/product_list.hpp"
#include "lib/train/product_tuning.hpp"
#include "tests/support/asked_to_stop.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
run: {device: cuda, output_dir: run, seed: 5, threads: 1, memory_limit: 64MiB,
      library_workspace: 1MiB}
model: {architecture: gpt2, vocab_size: 257, hidden_size: 24, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 16, micro_batch_size: 3, global_batch_size: 6, max_steps: 6}
)";

/// Sees the products of a real run.
class Products final : public kernels::Recorder {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    if (launch.name == kernels::Matmul::name) {
      list.add(*static_cast<const kernels::Matmul*>(launch.kernel));
    } else if (launch.name == kernels::CodeMatmul::name) {
      list.add(*static_cast<const kernels::CodeMatmul*>(launch.kernel));
    }
  }
  plan::ProductList list;
};

engine::StepBatch batch_of(std::int64_t samples, std::int64_t length) {
  engine::StepBatch batch;
  batch.resize(samples, length);
  batch.trained_tokens = samples * length;
  return batch;
}

}  // namespace

TEST_CASE("tuning takes the plan's memory before the engine, which then lies as planned") {
  const test::TempDir here;
  write_file_atomic(here.path() / "recipe.yaml", kRecipe);
  int number = 0;
  // Products of codes are for sizes that are multiples of 16.
  for (const auto& [precision, width] :
       {std::pair("precision.compute=fp32", "24"), std::pair("precision.compute=bf16", "24"),
        std::pair("precision={compute: fp8, fp8: {include: ['*']}}", "32")}) {
    CAPTURE(precision);
    const auto cache = here.path() / fmt::format("products {}", ++number);
    const auto recipe = train::load_recipe(
        here.path() / "recipe.yaml", {precision, std::string("model.hidden_size=") + width,
                                      "run.product_cache=" + cache.string()});
    const engine::EngineOptions options = recipe->engine_options();
    const plan::Plan plan = plan::make_plan(options, 6, train::target_of(*recipe));
    REQUIRE(plan.tuning_bytes > std::uint64_t{1} << 20);

    train::RunDevice run_device(*recipe);
    Device& device = run_device.device();
    {
      const test::AskedToStop asked;
      CHECK_THROWS_AS(train::tune_products(*recipe, run_device, plan, ""), Stopped);
      CHECK(device.ledger().held_bytes() == 0);
    }
    train::tune_products(*recipe, run_device, plan, "");
    CHECK(device.ledger().held_bytes() == 0);
    CHECK(device.arena_extent_bytes() == plan.tuning_bytes);
    Products products;
    engine::EnginePlace place = run_device.place();
    place.recorder = &products;
    engine::Engine engine(place, options);
    engine.initialize();
    const Peak& init = device.ledger().peak(Phase::init);
    CHECK(init.total_bytes == plan.init.total_bytes);
    CHECK(init.at_peak == plan.init.at_peak);
    CHECK(init.per_category == plan.init.per_category);
    CHECK(init.tag == plan.init.tag);

    device.ledger().start_comparison(plan.step_trace);
    engine.train_step(batch_of(6, options.seq_len), 1, 1.0);
    const auto difference = device.ledger().stop_comparison();
    CHECK((difference ? to_string(*difference) : "") == "");
    engine.evaluate(batch_of(3, options.seq_len));
    CHECK(device.arena_extent_bytes() == plan.extent_bytes());

    // Alignments included, the run's products are those that were tuned.
    const std::size_t planned = plan.products.size();
    CHECK(planned > 8);
    CHECK(products.list.all().size() == planned);
    for (const kernels::Product& product : plan.products) products.list.add(product);
    CHECK(products.list.all().size() == planned);
  }
}

}  // namespace llmtrain
