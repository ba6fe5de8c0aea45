// Steps of an engine on the GPU: the host launches them without waiting, and is told later what
// came of them.
#include <dlfcn.h>
#include <functional>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/backend.hpp"
#include "lib/base/activity.hpp"
#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::test {

using kernels::gpu_trial::kStandInAlone;
using kernels::gpu_trial::skip_if;

namespace {

constexpr std::int32_t kVocab = 61, kPoisoned = 60;
constexpr std::int64_t kLength = 13, kSamples = 4;

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 61, hidden_size: 24, num_hidden_layers: 2,
        num_attention_heads: 3, max_position_embeddings: 16, resid_pdrop: 0.1,
        tie_word_embeddings: false}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
optimizer: {lr: 1e-2, max_grad_norm: 0.5}
)";

/// Overrides that choose an optimizer; states of 8 bits are those of every parameter.
std::vector<std::string> optimizer(std::string_view name) {
  std::vector<std::string> overrides{fmt::format("optimizer.name={}", name)};
  if (name.ends_with("_8bit")) overrides.push_back("optimizer.min_8bit_size=0");
  return overrides;
}

/// A count of the emulated GPU's; null where the plugin is not the emulated one.
EmulatedCountFunction emulated(const char* name) {
  void* const plugin = ::dlopen(kernels::load_backend(DeviceKind::cuda).file.c_str(),
                                RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return reinterpret_cast<EmulatedCountFunction>(::dlsym(plugin, name));
}

/// Tokens below the poisoned one, and that one itself where `poisoned`.
void fill(engine::StepBatch& batch, std::uint64_t number, bool poisoned,
          std::int64_t samples = kSamples) {
  batch.resize(samples, kLength);
  batch.trained_tokens = 0;
  const PhiloxKey key = philox_key(1, "test", "tokens");
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const auto token = static_cast<std::int32_t>(philox_below(key, number, i, kPoisoned));
    batch.tokens[i] = poisoned && i == 20 ? kPoisoned : token;
    batch.targets[i] = i % 5 == number % 5 ? -1 : (token * 7 + 3) % kPoisoned;
    batch.doc_begin[i] = 0;
    batch.positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % kLength);
    batch.trained_tokens += batch.targets[i] >= 0;
  }
}

class GpuEngine {
 public:
  /// With workers by whose sums a tree grows, in run.determinism: layout.
  explicit GpuEngine(const std::vector<std::string>& overrides = {}, bool records = true,
                     int virtual_workers = 0)
      : gpu_(*kernels::load_backend(DeviceKind::cuda).backend),
        device_(gpu_.open(0), std::uint64_t{1} << 28) {
    recipe::load(recipe_,
                 {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
    engine::EngineOptions options = recipe_.options(7);
    options.records_launches = records;
    options.virtual_workers = virtual_workers;
    const auto determinism =
        virtual_workers > 0 ? kernels::Determinism::layout : kernels::Determinism::run;
    engine_ = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = &device_,
                            .table = &gpu_.kernels(),
                            .library_workspace_bytes = std::uint64_t{1} << 20,
                            .determinism = determinism},
        options);
    engine_->initialize();
  }
  /// Every step that reads the poisoned token has a loss that is not finite.
  void poison() {
    for (const auto& p : engine_->parameters().all()) {
      if (p->role() != ParameterRole::embedding || p->global_shape()[0] != kVocab) continue;
      const std::int64_t width = p->global_shape()[1];
      const std::vector<float> nan(static_cast<std::size_t>(width), NAN);
      engine_->parameters().write_part(*p, kPoisoned * width, std::as_bytes(std::span(nan)));
    }
  }
  /// Masters and states, to the bit.
  std::vector<std::vector<std::byte>> contents() {
    std::vector<std::vector<std::byte>> all;
    const auto add = [&](const Tensor& tensor) {
      device_.copy_to_host(all.emplace_back(tensor.view().bytes()), tensor);
    };
    for (const auto& p : engine_->parameters().all()) add(p->master());
    for (const optim::StateTensor& state : engine_->optimizer()->states()) add(state.tensor);
    return all;
  }
  /// Of the batch of its own number unless another is given.
  void launch(std::int64_t step, bool poisoned = false, std::int64_t samples = kSamples,
              std::int64_t batch = 0) {
    fill(batch_, static_cast<std::uint64_t>(batch == 0 ? step : batch), poisoned, samples);
    engine_->launch_step(batch_, step, {.lr_factor = 1.0 / static_cast<double>(step)});
    // What was launched must not read this any more.
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), -7);
    std::fill(batch_.targets.begin(), batch_.targets.end(), -7);
  }
  double evaluate() {
    fill(batch_, 77, false);
    return engine_->evaluate(batch_).loss_sum;
  }
  engine::Engine* operator->() { return engine_.get(); }
  Device& device() { return device_; }

 private:
  const kernels::Backend& gpu_;
  EngineRecipe recipe_;
  Device device_;
  std::unique_ptr<engine::Engine> engine_;
  engine::StepBatch batch_;
};

struct Story {
  std::vector<double> losses, norms, scales, rates, evaluations;
  std::vector<std::vector<std::byte>> contents;
  bool operator==(const Story&) const = default;

  void add(const engine::StepOutcome& outcome) {
    losses.push_back(outcome.loss_sum);
    norms.push_back(outcome.update.grad_norm);
    scales.push_back(outcome.update.clip_scale);
    rates.push_back(outcome.update.lr);
  }
};

/// Five steps of which `ahead` are under way while the next one is launched: the first of half a
/// batch, an evaluation behind the third.
Story told(const std::vector<std::string>& overrides, int ahead, bool records = true) {
  GpuEngine engine(overrides, records);
  Story story;
  for (std::int64_t step = 1; step <= 5; ++step) {
    engine.launch(step, false, step == 1 ? kSamples / 2 : kSamples);
    if (step == 3) story.evaluations.push_back(engine.evaluate());
    while (engine->steps_in_flight() > ahead) story.add(engine->settle_step());
  }
  while (engine->steps_in_flight() > 0) story.add(engine->settle_step());
  story.contents = engine.contents();
  return story;
}

// Beside those for inputs before the end of the step, of which each is a sign of life.
std::int64_t settle_waits(GpuEngine& engine, EmulatedCountFunction waits) {
  const std::int64_t begin = waits();
  const std::uint64_t signs = activity::ticks();
  CHECK(engine->settle_step().update.finite);
  return waits() - begin - static_cast<std::int64_t>(activity::ticks() - signs);
}

}  // namespace

TEST_CASE("launching a step waits for nothing, and settling one waits once") {
  const EmulatedCountFunction waits = emulated("emulated_host_waits");
  if (skip_if(waits == nullptr, kStandInAlone)) return;
  for (const char* name :
       {"adamw", "sgd", "momentum", "muon", "adagrad", "rmsprop", "amsgrad", "lion", "adam_mini",
        "adafactor", "came", "sm3", "adamw_8bit", "lion_8bit"}) {
    for (const char* compute : {"fp32", "bf16", "fp16"}) {
      CAPTURE(name);
      std::vector<std::string> overrides = optimizer(name);
      overrides.push_back(std::string("precision.compute=") + compute);
      overrides.push_back("optimizer.max_grad_value=1.0");
      GpuEngine engine(overrides);
      const std::int64_t before = waits();
      engine.launch(1);
      engine.launch(2);
      CHECK(waits() == before);
      CHECK(settle_waits(engine, waits) == 1);
      const std::int64_t settled = waits();
      engine.launch(3);
      CHECK(waits() == settled);
      while (engine->steps_in_flight() > 0) CHECK(settle_waits(engine, waits) == 1);
    }
  }
}

TEST_CASE("steps launched ahead have the bits of steps settled one by one") {
  for (const char* name : {"adamw", "muon"}) {
    for (const char* compute : {"fp32", "bf16", "fp16"}) {
      CAPTURE(name);
      CAPTURE(compute);
      const std::vector<std::string> overrides{std::string("optimizer.name=") + name,
                                               std::string("precision.compute=") + compute};
      const Story one_by_one = told(overrides, 0);
      CHECK(told(overrides, 1) == one_by_one);
      CHECK(one_by_one.losses[4] != one_by_one.losses[3]);
      CHECK(told(overrides, 0, false) == one_by_one);  // launched one by one, not recorded
      CHECK(one_by_one.rates == std::vector{1e-2, 1e-2 / 2, 1e-2 * (1.0 / 3), 1e-2 / 4, 1e-2 / 5});
      for (std::size_t i = 0; i < one_by_one.norms.size(); ++i) {
        CHECK(one_by_one.scales[i] == std::min(1.0, 0.5 / (one_by_one.norms[i] + 1e-6)));
      }
    }
  }
}

TEST_CASE("noise on gradients is that of each update, launched ahead, recorded or neither") {
  for (const char* compute : {"fp32", "bf16", "fp16"}) {
    CAPTURE(compute);
    std::vector<std::string> overrides{std::string("precision.compute=") + compute};
    const Story quiet = told(overrides, 0);
    overrides.push_back("optimizer.gradient_noise={eta: 1e-4, gamma: 0}");
    const Story noisy = told(overrides, 0);
    CHECK(told(overrides, 1) == noisy);
    CHECK(told(overrides, 0, false) == noisy);  // launched one by one, not recorded
    CHECK(noisy.norms[0] == quiet.norms[0]);
    CHECK(noisy.contents != quiet.contents);
  }
}

TEST_CASE("from its third run on a part of a step is launched as a whole") {
  const EmulatedCountFunction launches = emulated("emulated_launches");
  if (skip_if(launches == nullptr, kStandInAlone)) return;
  const auto launches_of = [&](GpuEngine& engine, std::int64_t step) {
    const std::int64_t before = launches();
    engine.launch(step);
    const std::int64_t made = launches() - before;
    CHECK(engine->settle_step().update.finite);
    return made;
  };
  for (const char* name : {"adamw", "muon"}) {
    CAPTURE(name);
    const std::vector<std::string> overrides{std::string("optimizer.name=") + name};
    GpuEngine recorded(overrides), plain(overrides, false);
    const std::int64_t all = launches_of(plain, 1);
    CHECK(launches_of(recorded, 1) == all);  // the second micro-batch while it is recorded
    const std::int64_t second = launches_of(recorded, 2);
    CHECK(second > 0);  // zeroing and updating
    CHECK(second < all);
    CHECK(launches_of(recorded, 3) == 0);
    // Neither plan nor ledger can tell the two apart.
    recorded.device().ledger().start_trace();
    CHECK(launches_of(recorded, 4) == 0);
    plain.device().ledger().start_trace();
    CHECK(launches_of(plain, 4) == all);
    CHECK(recorded.device().ledger().stop_trace() == plain.device().ledger().stop_trace());
  }
}

TEST_CASE("with determinism: layout micro-batches are recorded too, and the tree's sums are not") {
  constexpr int kWorkers = 2;
  constexpr std::int64_t kFourMicroBatches = 8;
  const EmulatedCountFunction launches = emulated("emulated_launches");
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    CAPTURE(compute);
    GpuEngine recorded({compute}, true, kWorkers), plain({compute}, false, kWorkers);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::int64_t before = launches == nullptr ? 0 : launches();
      recorded.launch(step, false, kFourMicroBatches);
      if (launches != nullptr && step > 2) {
        // Of each sink the first worker's sum is put away, the sink emptied, and both sums added.
        const auto sinks = std::ssize(recorded->parameters().local_groups()) + 1;
        CHECK(launches() - before == 3 * sinks);
      }
      plain.launch(step, false, kFourMicroBatches);
      const engine::StepOutcome a = recorded->settle_step(), b = plain->settle_step();
      CHECK(a.loss_sum == b.loss_sum);
      CHECK(a.update.grad_norm == b.update.grad_norm);
    }
    CHECK(recorded.contents() == plain.contents());
  }
}

TEST_CASE("attention that drops out is recorded too, and draws anew in every step") {
  const std::vector<std::string> drops{"model.attn_pdrop=0.5", "model.resid_pdrop=0"};
  const auto with = [&](const char* override) {
    std::vector<std::string> all = drops;
    all.emplace_back(override);
    return all;
  };
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    CAPTURE(compute);
    CHECK(told(with(compute), 1) == told(with(compute), 0, false));
  }
  // Equal batches at a learning rate of 0: what differs is what was dropped.
  GpuEngine engine(with("optimizer.lr=1e-30"));
  const EmulatedCountFunction launches = emulated("emulated_launches");
  std::set<double> losses;
  for (std::int64_t step = 1; step <= 5; ++step) {
    const std::int64_t before = launches == nullptr ? 0 : launches();
    engine.launch(step, false, kSamples, 1);
    if (launches != nullptr && step > 2) CHECK(launches() == before);
    losses.insert(engine->settle_step().loss_sum);
  }
  CHECK(losses.size() == 5);
}

TEST_CASE("what is drawn goes by the number of the step, not by how many were taken") {
  for (const char* drops : {"model.attn_pdrop=0.5", "model.resid_pdrop=0.5"}) {
    CAPTURE(drops);
    const auto first_loss = [&](std::int64_t step) {
      GpuEngine engine({"model.attn_pdrop=0", "model.resid_pdrop=0", drops});
      engine.launch(step, false, kSamples, 1);
      return engine->settle_step().loss_sum;
    };
    CHECK(first_loss(3) == first_loss(3));
    CHECK(first_loss(3) != first_loss(4));
  }
}

TEST_CASE("what cannot be repeated is not recorded, and moved memory is noticed") {
  GpuEngine engine;
  Device& device = engine.device();
  if (emulated("emulated_launches") != nullptr) {  // a real one would record no more after this
    const Tensor number = device.allocate({1}, DType::f64, Category::activations, "number");
    double host = 1;
    device.backend().begin_recording();
    CHECK_THROWS_AS(device.synchronize(), DeviceError);
    CHECK_THROWS_AS(device.copy_from_host(number, std::as_bytes(std::span(&host, 1))), DeviceError);
    CHECK_THROWS_AS(device.copy_to_host(std::as_writable_bytes(std::span(&host, 1)), number),
                    DeviceError);
    CHECK_THROWS_AS(device.backend().begin_recording(), DeviceError);
    device.backend().end_recording();
  }
  for (std::int64_t step = 1; step <= 3; ++step) {
    engine.launch(step);
    CHECK(engine->settle_step().update.finite);
  }
  const Tensor in_the_way = device.allocate({16}, DType::f32, Category::activations, "other");
  CHECK_THROWS_AS(engine.launch(4), InternalError);
}

TEST_CASE("a step that is not finite leaves no trace, while the next one is already launched") {
  for (const char* name :
       {"adamw", "sgd", "momentum", "muon", "adagrad", "rmsprop", "amsgrad", "lion", "adam_mini",
        "adafactor", "came", "sm3", "adamw_8bit", "lion_8bit"}) {
    CAPTURE(name);
    const std::vector<std::string> overrides = optimizer(name);
    GpuEngine with(overrides), without(overrides);
    with.poison();
    without.poison();
    const auto same_start = with.contents();
    REQUIRE(same_start == without.contents());
    with.launch(1);
    with.launch(2, true);
    CHECK(with->settle_step().update.finite);
    const auto after_first = [&] {
      without.launch(1);
      CHECK(without->settle_step().update.finite);
      return without.contents();
    }();
    CHECK(after_first != same_start);
    const engine::StepOutcome bad = with->settle_step();
    CHECK(!bad.update.finite);
    CHECK(!std::isfinite(bad.loss_sum));
    CHECK(with->optimizer()->progress().steps_taken == 1);
    CHECK(with.contents() == after_first);
    with.launch(3, true);
    with.launch(4);
    without.launch(4);
    CHECK(!with->settle_step().update.finite);
    CHECK(with->settle_step().update.finite);
    CHECK(without->settle_step().update.finite);
    CHECK(with->optimizer()->progress().steps_taken == 2);
    CHECK(with.contents() == without.contents());
  }
}

}  // namespace llmtrain::test
