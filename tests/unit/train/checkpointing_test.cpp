#include "lib/train/checkpointing.hpp"

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "lib/train/recipe.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

// The embedding has 1.5 MiB: more than is read at a time.
constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 6100, hidden_size: 64, num_hidden_layers: 1,
        num_attention_heads: 2, max_position_embeddings: 8}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
training: {seq_len: 8, global_batch_size: 1, max_steps: 10}
precision: {compute: bf16}
)";

struct Place {
  Recipe recipe;
  Device device{make_cpu_memory(), 1 << 26};
  std::unique_ptr<engine::Engine> engine;
  explicit Place(std::uint64_t seed, const std::string& master = "fp32") {
    recipe::load(recipe, {.file = "test.yaml",
                          .text = std::string(kRecipe),
                          .overrides = {"precision.master=" + master}});
    engine::EngineOptions options = recipe.engine_options();
    options.seed = seed;
    engine = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = &device, .table = &kernels::cpu_table()}, options);
    engine->initialize();
  }
};

void save_checkpoint(checkpoint::CheckpointStore& store, engine::Engine& engine,
                     const LoopState& state, const RunIdentity& identity) {
  store.save(static_cast<std::uint64_t>(state.step), boxes_to_save(engine),
             run_state(engine, state, identity));
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.view().bytes());
  tensor.device().copy_to_host(bytes, tensor);
  return bytes;
}

}  // namespace

TEST_CASE("a checkpoint brings back every element of parameters and optimizer states") {
  const test::TempDir directory;
  auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  Place saved(1);
  const PhiloxKey key = philox_key(1, "test", "states");
  for (const optim::StateTensor& state : saved.engine->optimizer()->states()) {
    for (std::int64_t i = 0; i < state.tensor.numel(); ++i) {
      state.tensor.view().as<float>()[i] =
          static_cast<float>(unit_interval(philox_word(key, 0, static_cast<std::uint64_t>(i))));
    }
  }
  LoopState state{.step = 3, .next_sample = 7, .elapsed_seconds = 5, .durable_seconds = 5};
  state.records.push_back({.step = 3, .fields = {{"train/loss", 2.5}, {"note", "a \"b\"\n"}}});
  state.records.push_back({.step = 3, .fields = {{"eval/loss", 1e-300}}});
  save_checkpoint(store, *saved.engine, state, identity);

  Place loaded(2);
  CHECK(load_checkpoint(store, 3, *loaded.engine, identity) == state);
  state.durable_seconds = 2;  // of a local one, since when the time to the next durable one counts
  save_checkpoint(store, *saved.engine, state, identity);
  CHECK(load_checkpoint(store, 3, *loaded.engine, identity) == state);
  for (const auto& p : saved.engine->parameters().all()) {
    CAPTURE(p->name());
    const Parameter& other = loaded.engine->parameters().find(p->name());
    CHECK(bytes_of(other.master()) == bytes_of(p->master()));
    CHECK(bytes_of(other.compute()) == bytes_of(p->compute()));
  }
  const auto states = saved.engine->optimizer()->states();
  for (std::size_t i = 0; i < states.size(); ++i) {
    CAPTURE(states[i].name);
    CHECK(bytes_of(loaded.engine->optimizer()->states()[i].tensor) == bytes_of(states[i].tensor));
  }
}

TEST_CASE("a checkpoint has whole masters and does not tell in which form they were") {
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  std::vector<std::string> hashes[2];
  for (const std::string saved_form : {"fp32", "bf16+remainder"}) {
    const test::TempDir directory;
    auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
    Place saved(1, saved_form);
    save_checkpoint(store, *saved.engine, {.step = 3, .next_sample = 7}, identity);
    const checkpoint::Loader loader = store.load(3);
    for (const auto& [name, file] : loader.manifest().files) {
      hashes[saved_form == "fp32"].push_back(name + to_hex(file.xxh3_128));
    }
    for (const std::string loaded_form : {"fp32", "bf16+remainder"}) {
      CAPTURE(saved_form);
      CAPTURE(loaded_form);
      Place loaded(2, loaded_form);
      load_checkpoint(store, 3, *loaded.engine, identity);
      for (const auto& p : saved.engine->parameters().all()) {
        CAPTURE(p->name());
        const Parameter& other = loaded.engine->parameters().find(p->name());
        CHECK(loaded.engine->parameters().read(other) == saved.engine->parameters().read(*p));
        CHECK(bytes_of(other.compute()) == bytes_of(p->compute()));
      }
    }
  }
  CHECK(hashes[0] == hashes[1]);
}

TEST_CASE("what has no master is saved as bf16, widens exactly, and FP32 is rounded to it") {
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  for (const std::string saved_form : {"none", "fp32"}) {
    const test::TempDir directory;
    auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
    Place saved(1, saved_form);
    save_checkpoint(store, *saved.engine, {.step = 3, .next_sample = 7}, identity);
    const DType expected = saved_form == "none" ? DType::bf16 : DType::f32;
    for (const auto& p : saved.engine->parameters().all()) {
      CHECK(store.load(3).manifest().tensors.at(p->name()).dtype == expected);
    }
    for (const std::string loaded_form : {"none", "fp32", "bf16+remainder"}) {
      CAPTURE(saved_form);
      CAPTURE(loaded_form);
      Place loaded(2, loaded_form);
      load_checkpoint(store, 3, *loaded.engine, identity);
      for (const auto& p : saved.engine->parameters().all()) {
        CAPTURE(p->name());
        const Parameter& other = loaded.engine->parameters().find(p->name());
        CHECK(bytes_of(other.compute()) == bytes_of(p->compute()));
        if (saved_form == "none" || loaded_form != "none") {
          CHECK(loaded.engine->parameters().read(other) == saved.engine->parameters().read(*p));
        }
      }
    }
  }
}

}  // namespace llmtrain::train
