#include "lib/train/product_tuning.hpp"

#include <chrono>

#include "lib/base/directory.hpp"
#include "lib/base/log.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::train {

namespace {

/// As the engine launches them.
kernels::KernelCtx context_of(const Recipe& recipe, RunDevice& device) {
  const engine::EnginePlace place = device.place();
  return {.device = place.device,
          .table = place.table,
          .stream = place.device->compute_stream(),
          .threads = place.threads,
          .determinism = place.determinism,
          .library_workspace_bytes = place.library_workspace_bytes,
          .tf32 = recipe.precision.tf32()};
}

bool tunes(const Recipe& recipe, const RunDevice& device) {
  recipe.run.product_cache.mark_read();  // also where there is nothing to tune
  return device.backend() != nullptr && recipe.run.tunes_products();
}

std::filesystem::path cache_of(const Recipe& recipe) {
  const std::optional<std::string>& given = recipe.run.product_cache();
  return given ? std::filesystem::path(*given) : user_cache_directory() / "products.txt";
}

void log_tuning(const kernels::TunedProducts& tuned, const std::filesystem::path& cache,
                double seconds) {
  std::string line = fmt::format("products: {} shapes", tuned.total());
  if (tuned.kept > 0) line += fmt::format(", {} as in the checkpoint", tuned.kept);
  if (tuned.known > 0) line += fmt::format(", {} from {}", tuned.known, cache.string());
  if (tuned.measured > 0) {
    line += fmt::format(", {} measured in {}", tuned.measured, format_duration(seconds));
  }
  if (tuned.left_out > 0) line += fmt::format(", {} not tuned", tuned.left_out);
  log::info("{}", line);
}

}  // namespace

std::string tune_products(const Recipe& recipe, RunDevice& device, const plan::Plan& plan,
                          std::string_view choices) {
  if (!tunes(recipe, device)) return std::string(choices);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Tensor scratch;
  if (plan.tuning_bytes > 0) {
    scratch = device.device().allocate({static_cast<std::int64_t>(plan.tuning_bytes)}, DType::u8,
                                       Category::workspace, plan::kTuningTag);
  }
  const std::filesystem::path cache = cache_of(recipe);
  const kernels::TunedProducts tuned = device.backend()->tune_products(
      context_of(recipe, device), plan.products, scratch.view(),
      {.choices = choices, .file = cache, .stop = is_asked_to_stop});
  stop_if_asked("tuning products");  // what was measured is kept for the next start
  log_tuning(tuned, cache, std::chrono::duration<double>(Clock::now() - begin).count());
  return tuned.choices;
}

std::string tune_products_in_turn(const Recipe& recipe, RunDevice& device, const plan::Plan& plan,
                                  const Peers& peers, std::string_view choices) {
  const JobPlace& place = peers.world().place();
  if (place.size == 1 || !tunes(recipe, device)) {
    return tune_products(recipe, device, plan, choices);
  }
  const World::LongWait patience(peers.world());
  std::string all(choices);
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank) all = tune_products(recipe, device, plan, all);
    all = peers.text_of(rank, all, "choices of products");
  }
  restore_product_choices(recipe, device, all);  // those of the ranks behind this one, too
  return all;
}

void restore_product_choices(const Recipe& recipe, RunDevice& device, std::string_view choices) {
  if (!tunes(recipe, device)) return;
  device.backend()->tune_products(context_of(recipe, device), {}, {},
                                  {.choices = choices, .file = {}});
}

}  // namespace llmtrain::train
