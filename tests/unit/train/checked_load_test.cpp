#include "lib/train/checked_load.hpp"

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/train/checkpoint_tensors.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/train/engine_of_recipe.hpp"

namespace llmtrain::train {

namespace {

// The embedding has 5 MiB in FP32: more than is read, and handed over, at a time.
constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 20000, hidden_size: 64, num_hidden_layers: 1,
        num_attention_heads: 2, max_position_embeddings: 8}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
training: {seq_len: 8, global_batch_size: 1, max_steps: 10}
)";
const RunIdentity kIdentity{.seed = 1, .epoch_size = 10, .data_fingerprint = "text"};

struct Place : EngineOfRecipe {
  Place(std::uint64_t seed, const Overrides& overrides)
      : EngineOfRecipe(kRecipe, seed, overrides, 3) {
    for (const optim::StateTensor& state : engine->optimizer()->states()) {
      std::vector<std::byte> values(state.tensor.view().bytes());
      const auto key = static_cast<std::uint32_t>(seed);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<std::byte>((i * 2654435761u + key * 97u) >> 20 & 0x3f);
      }
      state.write(0, values);
    }
  }
  /// Everything that a checkpoint has, as bytes by name.
  std::map<std::string, std::vector<std::byte>> values() {
    std::map<std::string, std::vector<std::byte>> all;
    for (const auto& p : engine->parameters().all()) {
      all[p->name()] = engine->parameters().read(*p);
    }
    for (const optim::StateTensor& state : engine->optimizer()->states()) {
      all[state.name].resize(state.tensor.view().bytes());
      state.tensor.device().copy_to_host(all[state.name], state.tensor);
    }
    return all;
  }
};

checkpoint::CheckpointStore save(Place& place, const std::filesystem::path& directory,
                                 checkpoint::StoreOptions options = {}) {
  auto store = checkpoint::CheckpointStore::open_writer(directory, std::move(options));
  store.save(3, boxes_to_save(*place.engine), run_state(*place.engine, {.step = 3}, kIdentity));
  return store;
}

CheckedLoad load(const checkpoint::CheckpointStore& store, Place& place) {
  return load_while_checking(store, 3, *place.engine, kIdentity, place.engine->mesh().world());
}

std::filesystem::path largest_file(const std::filesystem::path& directory) {
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) {
      largest = entry.path();
    }
  }
  return largest;
}

/// Bytes that this process has asked the system for so far.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "rchar:") return value;
  }
  FAIL("/proc/self/io has no rchar");
  return 0;
}

}  // namespace

TEST_CASE("what is handed over by the check is what is loaded without one, in every form") {
  const std::vector<Overrides> forms{
      {"precision.compute=fp32"},
      {"precision.compute=fp64"},
      {"precision={compute: bf16, master: fp32}"},
      {"precision={compute: bf16, master: bf16+remainder}", "optimizer.state_dtype=bf16"},
      {"precision={compute: bf16, master: none}"},
      {"precision.compute=fp32", "optimizer.name=adamw_8bit"}};
  for (std::size_t from = 0; from < forms.size(); ++from) {
    const test::TempDir directory;
    Place saved(1, forms[from]);
    const auto store = save(saved, directory / "checkpoints");
    for (std::size_t to = 0; to < forms.size(); ++to) {
      if ((from == 5) != (to == 5)) continue;  // codes are no numbers
      CAPTURE(forms[from]);
      CAPTURE(forms[to]);
      Place plain(2, forms[to]), checked(3, forms[to]);
      const LoopState expected = load_checkpoint(store, 3, *plain.engine, kIdentity);
      const CheckedLoad loaded = load(store, checked);
      REQUIRE(loaded.problems.empty());
      REQUIRE(loaded.state.has_value());
      CHECK(*loaded.state == expected);
      CHECK(checked.values() == plain.values());
      if (from == to) CHECK(checked.values() == saved.values());
    }
  }
}

TEST_CASE("of a check of some of the files what it has is taken, and the others are read") {
  const test::TempDir directory;
  Place saved(1, {"precision.compute=fp32"});
  const auto store = save(saved, directory / "checkpoints", {.max_shard_bytes = 1 << 20});
  REQUIRE(store.load(3).manifest().files.size() > 3);
  for (const int checker : {0, 1, 2}) {
    CAPTURE(checker);
    Place loaded(2, {"precision.compute=fp32"});
    checkpoint::Handover handover(checker, 3);
    const checkpoint::CheckPart part{.checker = checker, .checkers = 3, .handover = &handover};
    auto check = std::async(std::launch::async, [&] {
      const auto problems = store.verify(3, checkpoint::VerifyLevel::hash, part);
      handover.end();
      return problems;
    });
    load_checkpoint(store, 3, *loaded.engine, kIdentity, &handover);
    handover.close();
    CHECK(check.get().empty());
    CHECK(handover.is_complete());
    CHECK(loaded.values() == saved.values());
  }
}

TEST_CASE("where no thread can check meanwhile, everything is read") {
  const test::TempDir directory;
  Place saved(1, {"precision.compute=fp32"}), loaded(2, {"precision.compute=fp32"});
  const auto store = save(saved, directory / "checkpoints");
  checkpoint::Handover handover(0, 1);
  handover.close();
  load_checkpoint(store, 3, *loaded.engine, kIdentity, &handover);
  CHECK(handover.is_complete());
  CHECK(loaded.values() == saved.values());
}

TEST_CASE("a checkpoint that is loaded while it is checked is read once") {
  const test::TempDir directory;
  Place saved(1, {"precision.compute=fp32"});
  const auto store = save(saved, directory / "checkpoints");
  Place loaded(2, {"precision.compute=fp32"});
  const std::uint64_t bytes = std::filesystem::file_size(largest_file(store.directory_of(3)));
  const std::uint64_t before = bytes_read();
  REQUIRE(load(store, loaded).state.has_value());
  CHECK(bytes_read() - before > bytes);
  CHECK(bytes_read() - before < bytes + bytes / 10);
}

TEST_CASE("a checkpoint that is damaged is told, and brings no state") {
  const test::TempDir directory;
  Place saved(1, {"precision.compute=fp32"});
  const auto store = save(saved, directory / "checkpoints");
  const std::filesystem::path file = largest_file(store.directory_of(3));
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto byte = static_cast<char>(damaged.seekg(5'000'000).get() ^ 4);
  damaged.seekp(5'000'000).put(byte);
  damaged.close();
  Place loaded(2, {"precision.compute=fp32"});
  const CheckedLoad found = load(store, loaded);
  REQUIRE(found.problems.size() == 1);
  CHECK(found.problems.front().file == file.filename().string());
  CHECK_FALSE(found.state.has_value());
}

TEST_CASE("a checkpoint of another model is refused while it is checked") {
  const test::TempDir directory;
  Place saved(1, {"precision.compute=fp32"});
  const auto store = save(saved, directory / "checkpoints");
  Place other(2, {"precision.compute=fp32", "model.hidden_size=32"});
  CHECK_THROWS_AS(load(store, other), CheckpointError);
}

}  // namespace llmtrain::train
