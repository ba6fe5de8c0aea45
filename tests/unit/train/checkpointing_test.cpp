#include "lib/train/checkpointing.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/philox.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/train/engine_of_recipe.hpp"

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

struct Place : EngineOfRecipe {
  explicit Place(std::uint64_t seed, const std::string& master = "fp32")
      : Place(seed, Overrides{"precision.master=" + master}) {}
  Place(std::uint64_t seed, const Overrides& overrides)
      : EngineOfRecipe(kRecipe, seed, overrides) {}
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

/// FP32 states of other values each.
void fill_states(engine::Engine& engine) {
  for (const optim::StateTensor& state : engine.optimizer()->states()) {
    const PhiloxKey key = philox_key(1, "test", state.name);
    for (std::int64_t i = 0; i < state.tensor.numel(); ++i) {
      state.tensor.view().as<float>()[i] =
          static_cast<float>(unit_interval(philox_word(key, 0, static_cast<std::uint64_t>(i))));
    }
  }
}

void check_same_tensors(engine::Engine& a, engine::Engine& b) {
  for (const auto& p : a.parameters().all()) {
    CAPTURE(p->name());
    CHECK(a.parameters().read(*p) == b.parameters().read(b.parameters().find(p->name())));
  }
  const auto states = a.optimizer()->states();
  REQUIRE(b.optimizer()->states().size() == states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    CAPTURE(states[i].name);
    CHECK(bytes_of(b.optimizer()->states()[i].tensor) == bytes_of(states[i].tensor));
  }
}

}  // namespace

TEST_CASE("a checkpoint brings back every element of parameters and optimizer states") {
  const test::TempDir directory;
  auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  Place saved(1);
  fill_states(*saved.engine);
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

TEST_CASE("masters and states go to FP64 and back with every bit") {
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  const std::string whole = "precision={compute: fp32}", none = "precision.master=none";
  const std::string wide = "precision={compute: fp64}";
  for (const std::string& precision : {whole, none}) {
    for (const std::string optimizer : {"adamw", "came"}) {  // came: factored states, too
      CAPTURE(precision);
      CAPTURE(optimizer);
      const test::TempDir directory;
      auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
      Place saved(1, Overrides{precision, "optimizer.name=" + optimizer});
      fill_states(*saved.engine);
      save_checkpoint(store, *saved.engine, {.step = 3}, identity);

      Place between(2, Overrides{wide, "optimizer.name=" + optimizer});
      load_checkpoint(store, 3, *between.engine, identity);
      const std::string name = "model.embed_tokens.weight";
      const auto narrow = saved.engine->parameters().read(saved.engine->parameters().find(name));
      const double* values =
          between.engine->parameters().find(name).compute().view().as<const double>();
      for (const std::size_t i : {0, 1, 6100 * 64 - 1}) {
        float value;
        std::memcpy(&value, &narrow[i * sizeof value], sizeof value);
        CHECK(values[i] == value);
      }
      save_checkpoint(store, *between.engine, {.step = 4}, identity);
      const checkpoint::Loader wide_loader = store.load(4);
      for (const auto& [tensor, record] : wide_loader.manifest().tensors) {
        CAPTURE(tensor);
        CHECK(record.dtype == DType::f64);
      }

      Place back(3, Overrides{precision, "optimizer.name=" + optimizer});
      load_checkpoint(store, 4, *back.engine, identity);
      check_same_tensors(*saved.engine, *back.engine);
    }
  }
}

TEST_CASE("FP64 values that FP32 has not become the nearest, of two the even one") {
  const test::TempDir directory;
  auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  const double values[] = {
      1 + 0x1p-24, 1 + 0x1p-24 + 0x1p-50, 1 + 0x1.8p-23, -(1 + 0x1p-24), 0.1, 1e-46, 0x1.8p-149};
  const float nearest[] = {1, 1 + 0x1p-23F, 1 + 0x1p-22F, -1, 0.1F, 0, 0x1p-148F};
  Place saved(1, Overrides{"precision={compute: fp64}"});
  const Tensor parameter = saved.engine->parameters().find("model.embed_tokens.weight").compute();
  const Tensor state = saved.engine->optimizer()->states()[0].tensor;
  for (const Tensor& tensor : {parameter, state}) {
    std::copy(std::begin(values), std::end(values), tensor.view().as<double>());
  }
  save_checkpoint(store, *saved.engine, {.step = 3}, identity);
  Place loaded(2, Overrides{"precision={compute: fp32}"});
  log::open_file(directory / "log");
  load_checkpoint(store, 3, *loaded.engine, identity);
  const std::string said = read_file(directory / "log");
  const std::string expected =
      fmt::format("warning: {} tensors of the checkpoint are FP64 and rounded",
                  store.load(3).manifest().tensors.size());
  CHECK(said.find(expected) != std::string::npos);
  CHECK(said.find("warning") == said.rfind("warning"));
  const Tensor narrow = loaded.engine->parameters().find("model.embed_tokens.weight").compute();
  const Tensor narrow_state = loaded.engine->optimizer()->states()[0].tensor;
  REQUIRE(loaded.engine->optimizer()->states()[0].name == "model.embed_tokens.weight#m");
  for (std::size_t i = 0; i < std::size(values); ++i) {
    CAPTURE(values[i]);
    CHECK(narrow.view().as<const float>()[i] == nearest[i]);
    CHECK(narrow_state.view().as<const float>()[i] == nearest[i]);
  }
}

TEST_CASE("bf16 states widen exactly, wide ones become the nearest, of two the even one") {
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  const std::string narrow = "optimizer.state_dtype=bf16";
  const double values[] = {0,        -0.0,          1 + 0x1p-8,           1 + 0x1.8p-7,
                           -3.0,     0x1p-133,      1 + 0x1p-8 + 0x1p-20, 0.1,
                           INFINITY, -(1 + 0x1p-8), 0x1.ffp127,           0x1p-134};
  const double nearest[] = {0,          -0.0,      1,        1 + 0x1p-6, -3.0,     0x1p-133,
                            1 + 0x1p-7, 0x1.9ap-4, INFINITY, -1,         INFINITY, 0};
  for (const std::string wide :
       {"precision={compute: fp32}", "precision={compute: bf16}", "precision={compute: fp64}"}) {
    CAPTURE(wide);
    const test::TempDir directory;
    auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
    Place first(1, Overrides{wide}), second(2, Overrides{narrow}), third(3, Overrides{wide}),
        last(4, Overrides{narrow});
    const auto state = [](Place& place) {
      return place.engine->optimizer()->states()[1].tensor.view();
    };
    for (std::size_t i = 0; i < std::size(values); ++i) {
      if (state(first).dtype == DType::f64) state(first).as<double>()[i] = values[i];
      if (state(first).dtype == DType::f32) {
        state(first).as<float>()[i] = static_cast<float>(values[i]);
      }
    }
    save_checkpoint(store, *first.engine, {.step = 3}, identity);
    load_checkpoint(store, 3, *second.engine, identity);
    save_checkpoint(store, *second.engine, {.step = 4}, identity);
    const checkpoint::Loader loader = store.load(4);
    for (const auto& [name, record] : loader.manifest().tensors) {
      CAPTURE(name);
      CHECK((record.dtype == DType::bf16) == (name.find('#') != name.npos));
    }
    load_checkpoint(store, 4, *third.engine, identity);
    for (std::size_t i = 0; i < std::size(values); ++i) {
      CAPTURE(values[i]);
      const double found = state(third).dtype == DType::f64
                               ? state(third).as<double>()[i]
                               : static_cast<double>(state(third).as<float>()[i]);
      CHECK(to_float(state(second).as<bf16>()[i]) == static_cast<float>(nearest[i]));
      CHECK(found == nearest[i]);
      CHECK(std::signbit(found) == std::signbit(nearest[i]));
    }
    save_checkpoint(store, *third.engine, {.step = 5}, identity);
    load_checkpoint(store, 5, *last.engine, identity);
    check_same_tensors(*second.engine, *last.engine);
  }
}

TEST_CASE("codes of 8-bit states become no numbers, nor numbers codes") {
  const test::TempDir directory;
  auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  const std::string name = "model.embed_tokens.weight#m";
  const std::vector<std::byte> zeros(6100 * 64 * sizeof(float));
  for (const std::string optimizer : {"adamw", "adamw_8bit"}) {
    CAPTURE(optimizer);
    Place place(1, Overrides{"optimizer.name=" + optimizer});
    const DType own = optimizer == "adamw" ? DType::f32 : DType::u8;
    const DType other = own == DType::u8 ? DType::f32 : DType::u8;
    std::vector<checkpoint::TensorBox> boxes = boxes_to_save(*place.engine);
    const auto box = std::ranges::find(boxes, name, &checkpoint::TensorBox::name);
    REQUIRE(box->dtype == own);
    box->dtype = other;
    box->bytes = std::span(zeros).first(6100 * 64 * size_of(other));
    store.save(3, boxes, run_state(*place.engine, {.step = 3}, identity));
    const std::string expected = fmt::format(
        "'{}' is {} [6100, 64] in the checkpoint, but this "
        "run needs {} [6100, 64]",
        name, to_string(other), to_string(own));
    CHECK_THROWS_WITH_AS(load_checkpoint(store, 3, *place.engine, identity),
                         doctest::Contains(expected.c_str()), CheckpointError);
  }
}

TEST_CASE("a head of its own goes on from the embedding of tied tables, with its states") {
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  for (const std::string optimizer : {"adamw", "adam_mini", "came", "adamw_8bit"}) {
    CAPTURE(optimizer);
    const test::TempDir directory;
    auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
    Place tied(1, Overrides{"optimizer.name=" + optimizer});
    for (const optim::StateTensor& state : tied.engine->optimizer()->states()) {
      std::byte* bytes = state.tensor.view().as<std::byte>();
      for (std::size_t i = 0; i < state.tensor.view().bytes(); ++i) bytes[i] = std::byte(i % 97);
    }
    save_checkpoint(store, *tied.engine, {.step = 3}, identity);
    Place untied(2, Overrides{"optimizer.name=" + optimizer, "model.tie_word_embeddings=false"});
    load_checkpoint(store, 3, *untied.engine, identity);
    const ParameterStore& parameters = untied.engine->parameters();
    const Parameter& embedding = tied.engine->parameters().find("model.embed_tokens.weight");
    for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      CHECK(parameters.read(parameters.find(name)) == tied.engine->parameters().read(embedding));
      CHECK(bytes_of(parameters.find(name).compute()) == bytes_of(embedding.compute()));
    }
    std::map<std::string, std::vector<std::byte>> states;
    for (const optim::StateTensor& state : untied.engine->optimizer()->states()) {
      states[state.name] = bytes_of(state.tensor);
    }
    for (const optim::StateTensor& state : tied.engine->optimizer()->states()) {
      CAPTURE(state.name);
      CHECK(states.at(state.name) == bytes_of(state.tensor));
      if (state.parameter != &embedding) continue;
      const std::string of_head = "lm_head.weight" + state.name.substr(embedding.name().size());
      CHECK(states.at(of_head) == bytes_of(state.tensor));
    }

    // From then on both are there, and are read each by its name.
    const Tensor head = parameters.find("lm_head.weight").compute();
    head.view().as<bf16>()[0] = to_bf16(7);
    const Tensor master = parameters.find("lm_head.weight").master();
    master.view().as<float>()[0] = 7;
    save_checkpoint(store, *untied.engine, {.step = 4}, identity);
    Place again(3, Overrides{"optimizer.name=" + optimizer, "model.tie_word_embeddings=false"});
    load_checkpoint(store, 4, *again.engine, identity);
    check_same_tensors(*untied.engine, *again.engine);

    Place tied_again(4, Overrides{"optimizer.name=" + optimizer});
    CHECK_THROWS_WITH_AS(
        load_checkpoint(store, 4, *tied_again.engine, identity),
        doctest::Contains("a head of its own (lm_head.weight), and model.tie_word_embeddings is "
                          "true"),
        CheckpointError);
  }
}

TEST_CASE("a head's missing states are not the embedding's where the checkpoint has a head") {
  const test::TempDir directory;
  auto store = checkpoint::CheckpointStore::open_writer(directory / "checkpoints");
  const RunIdentity identity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};
  Place untied(1, Overrides{"model.tie_word_embeddings=false"});
  std::vector<checkpoint::TensorBox> boxes = boxes_to_save(*untied.engine);
  std::erase_if(boxes, [](const auto& box) { return box.name == "lm_head.weight#v"; });
  store.save(3, boxes, run_state(*untied.engine, {.step = 3}, identity));
  CHECK_THROWS_WITH_AS(load_checkpoint(store, 3, *untied.engine, identity),
                       doctest::Contains("1 tensors missing (lm_head.weight#v ...), 0 unexpected"),
                       CheckpointError);
}

}  // namespace llmtrain::train
