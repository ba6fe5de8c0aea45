// Hugging Face directories: those that transformers saved (scripts/golden/hf_directories.py), and
// ours.
#include "lib/checkpoint/hf_directory.hpp"

#include <cstdlib>
#include <fstream>
#include <optional>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"
#include "lib/models/architecture.hpp"
#include "tests/parity/golden.hpp"
#include "tests/support/formula.hpp"

namespace llmtrain::test {

namespace {

namespace fs = std::filesystem;
using checkpoint::Dims;
using checkpoint::StoredType;

class ScratchFolder {
 public:
  ScratchFolder() : path_(fs::temp_directory_path() / ("llmtrain-hf-" + checkpoint::make_nonce())) {
    fs::create_directories(path_);
  }
  ~ScratchFolder() { fs::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

struct Stored {
  StoredType type;
  Dims shape;
  std::vector<std::byte> bytes;
};

/// A weight file as something to break.
std::map<std::string, Stored> load_file(const fs::path& path) {
  const auto file = checkpoint::SafetensorsFile::open(path);
  std::map<std::string, Stored> tensors;
  for (const checkpoint::SafetensorsEntry& entry : file.entries()) {
    Stored& stored = tensors[entry.name];
    stored = {entry.type, entry.shape, std::vector<std::byte>(entry.bytes)};
    file.read_tensor(entry.name, stored.bytes);
  }
  return tensors;
}

fs::path save_file(const fs::path& path, const std::map<std::string, Stored>& tensors) {
  std::vector<checkpoint::TensorBytes> parts;
  for (const auto& [name, t] : tensors) parts.push_back({{name, t.type, t.shape}, t.bytes});
  checkpoint::write_safetensors(path, parts);
  return path;
}

/// The values of a model in memory.
void export_store(const fs::path& path, const ParameterStore& store, const HfLayout& layout,
                  DType dtype, const std::string& config) {
  checkpoint::export_hf(
      path,
      {.parameters = &store, .layout = &layout, .dtype = dtype, .texts = {{"config.json", config}}},
      {.dtype = [](const Parameter& p) { return p.master_dtype(); },
       .read = [&](const Parameter& p, std::int64_t first,
                   std::span<std::byte> to) { store.read_part(p, first, to); }});
}

/// A model of the shape that a saved directory describes.
struct SavedModel {
  explicit SavedModel(const std::string& name, DType compute = DType::f32)
      : folder(golden_folder() / name),
        config(checkpoint::read_hf_config(folder)),
        architecture(models::hf_architecture(config, name)),
        spec(architecture.spec_from_hf_config(config, name)),
        run(spec, {.compute = compute}),
        layout(architecture.hf_layout(spec)) {}

  void import(const fs::path& path) { checkpoint::import_hf(path, run.store(), layout); }
  void export_to(const fs::path& path, DType dtype, const std::string& config_text) {
    export_store(path, run.store(), layout, dtype, config_text);
  }

  fs::path folder;
  std::string config;
  const models::Architecture& architecture;
  models::DecoderSpec spec;
  DecoderRun run;
  HfLayout layout;
};

std::string error_of_import(SavedModel& model, const fs::path& path) {
  try {
    model.import(path);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "imported";
}

/// Directories of scripts/golden/hf_directories.py, with the dtype of their weights.
const std::map<std::string, DType> kSaved{
    {"hf_gpt2", DType::f32},     {"hf_llama", DType::bf16},     {"hf_mistral", DType::bf16},
    {"hf_qwen2", DType::f32},    {"hf_qwen3", DType::bf16},     {"hf_gemma2", DType::bf16},
    {"hf_mixtral", DType::bf16}, {"hf_qwen3_moe", DType::bf16}, {"hf_mpt", DType::f32},
    {"hf_dots1", DType::bf16}};

/// The FP32 values that scripts/golden/hf_directories.py gave a parameter.
std::vector<float> saved_values(const Parameter& p, bool through_bf16) {
  std::vector<float> values = formula_weights(p.name(), p.global_shape().numel(), 0, 1);
  if (!through_bf16) return values;
  for (float& x : values) x = to_float(to_bf16(x));
  return values;
}

}  // namespace

TEST_CASE("what transformers saved is read value by value") {
  for (const auto& [name, dtype] : kSaved) {
    for (const DType compute : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SavedModel model(name, compute);
      model.import(model.folder);
      for (const auto& p : model.run.store().all()) {
        CAPTURE(p->name());
        // What no gradient changes is in FP32 there.
        const bool narrow = dtype == DType::bf16 && p->is_trained();
        const std::vector<float> expected = saved_values(*p, narrow);
        const std::vector<double> wide(expected.begin(), expected.end());
        CHECK(to_doubles(p->master()) == wide);
      }
    }
  }
}

TEST_CASE("a directory that transformers saved is written again byte by byte") {
  const ScratchFolder scratch;
  for (const auto& [name, dtype] : kSaved) {
    CAPTURE(name);
    SavedModel model(name);
    model.import(model.folder);
    const std::string config = model.architecture.hf_config(model.spec, {.dtype = dtype});
    model.export_to(scratch / name, dtype, config);
    CHECK(read_file(scratch / name / "model.safetensors") ==
          read_file(model.folder / "model.safetensors"));
    const models::DecoderSpec again = models::spec_from_hf_config(config, name);
    CHECK(models::computed_difference(again, model.spec) == "");
    CHECK(again.vocab_size == model.spec.vocab_size);
    CHECK(again.hidden_size == model.spec.hidden_size);
    CHECK(again.intermediate_size == model.spec.intermediate_size);
    CHECK(again.num_hidden_layers == model.spec.num_hidden_layers);
    CHECK(again.max_position_embeddings == model.spec.max_position_embeddings);
    CHECK_THROWS_AS(model.export_to(scratch / name, dtype, config), RecipeError);
  }
}

// With LLMTRAIN_HF_EXPORT=DIR the directories stay, for scripts/golden/hf_directories.py DIR.
TEST_CASE("an exported model opens here with the same logits") {
  const ScratchFolder scratch;
  const char* kept = std::getenv("LLMTRAIN_HF_EXPORT");
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    const RunOptions options{.seq_len = golden.batch().length};
    DecoderRun original(golden.spec(), options);
    original.fill([&](const Parameter& p) { return golden.weights(p); });
    const models::Architecture& row = golden.architecture();
    const HfLayout layout = row.hf_layout(golden.spec());
    const fs::path folder = kept != nullptr ? fs::path(kept) / name : scratch / name;
    export_store(folder, original.store(), layout, DType::f32, row.hf_config(golden.spec(), {}));

    models::DecoderSpec spec =
        models::spec_from_hf_config(checkpoint::read_hf_config(folder), name);
    // No config.json says that experts drop tokens.
    CHECK(spec.experts.capacity_factor == 0);
    spec.experts.capacity_factor = golden.spec().experts.capacity_factor;
    DecoderRun opened(spec, options);
    checkpoint::import_hf(folder, opened.store(), row.hf_layout(spec));
    CHECK(opened.logits(golden.batch()) == original.logits(golden.batch()));
  }
}

TEST_CASE("names without prefix, tied copies and constants of old files are accepted") {
  const ScratchFolder scratch;
  SavedModel model("hf_gpt2");
  std::map<std::string, Stored> old;
  for (auto& [name, tensor] : load_file(model.folder / "model.safetensors")) {
    old[name.substr(std::string("transformer.").size())] = tensor;
  }
  old["lm_head.weight"] = old.at("wte.weight");
  old["h.0.attn.bias"] = {StoredType::u8, {1, 1, 11, 11}, std::vector<std::byte>(121)};
  model.import(save_file(scratch / "old.safetensors", old));
  for (const auto& p : model.run.store().all()) {
    const std::vector<float> expected = saved_values(*p, false);
    CHECK(to_doubles(p->master()) == std::vector<double>(expected.begin(), expected.end()));
  }

  old["lm_head.weight"].bytes[5] ^= std::byte{1};
  CHECK(error_of_import(model, save_file(scratch / "untied.safetensors", old))
            .find("'lm_head.weight' differs from 'wte.weight'") != std::string::npos);
}

TEST_CASE("files with other tensors are refused by name and nothing is written") {
  const ScratchFolder scratch;
  const std::string weight = "model.layers.1.self_attn.k_proj.weight";
  SavedModel model("hf_llama");
  model.import(model.folder);
  const std::vector<double> before = to_doubles(model.run.store().all().front()->master());
  const auto refused = [&](const std::string& file, const auto& spoil) {
    auto tensors = load_file(model.folder / "model.safetensors");
    for (std::byte& b : tensors.at("model.embed_tokens.weight").bytes) b = std::byte{0};
    spoil(tensors);
    const std::string message = error_of_import(model, save_file(scratch / file, tensors));
    CHECK(to_doubles(model.run.store().all().front()->master()) == before);
    return message;
  };
  const auto mentions = [](const std::string& message, const std::string& part) {
    return message.find(part) != std::string::npos;
  };
  CHECK(mentions(refused("a", [&](auto& t) { t.erase(weight); }), "missing: " + weight));
  CHECK(mentions(refused("b", [&](auto& t) { t["model.extra"] = t.at(weight); }),
                 "unexpected: model.extra"));
  CHECK(mentions(
      refused("c", [&](auto& t) { std::swap(t.at(weight).shape[0], t.at(weight).shape[1]); }),
      weight + " is [16, 12] instead of [12, 16]"));
  CHECK(mentions(refused("d", [&](auto& t) { t.at(weight).type = StoredType::i16; }),
                 "'" + weight + "' is I16"));
}

TEST_CASE("half-precision weights are read exactly") {
  const ScratchFolder scratch;
  SavedModel model("hf_llama");
  auto tensors = load_file(model.folder / "model.safetensors");
  Stored& norm = tensors.at("model.norm.weight");
  norm.type = StoredType::f16;
  // 1, -2, the largest, the smallest normal, the smallest, minus infinity, zeros.
  const std::vector<std::uint16_t> bits{0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0xfc00, 0, 0x8000};
  for (std::size_t i = 0; i < 16; ++i) std::memcpy(&norm.bytes[2 * i], &bits[i % 8], 2);
  model.import(save_file(scratch / "half.safetensors", tensors));
  const std::vector<double> values =
      to_doubles(model.run.store().find("model.norm.weight").master());
  const std::vector<double> expected{1, -2, 65504, 0x1p-14, 0x1p-24, -INFINITY, 0, 0};
  for (std::size_t i = 0; i < 16; ++i) CHECK(values[i] == expected[i % 8]);
}

TEST_CASE("weights are written in fp16 where they fit, and refused where they do not") {
  const ScratchFolder scratch;
  SavedModel model("hf_llama");
  model.import(model.folder);
  const std::string config = model.architecture.hf_config(model.spec, {.dtype = DType::f16});
  const auto write = [&](const std::string& name) {
    model.export_to(scratch / name, DType::f16, config);
  };
  write("half");
  SavedModel again("hf_llama");
  again.import(scratch / "half");
  for (const auto& p : again.run.store().all()) {
    CAPTURE(p->name());
    std::vector<double> expected = to_doubles(model.run.store().find(p->name()).master());
    for (double& x : expected) x = to_float(to_f16(static_cast<float>(x)));
    CHECK(to_doubles(p->master()) == expected);
  }

  auto tensors = load_file(model.folder / "model.safetensors");
  Stored& norm = tensors.at("model.norm.weight");
  norm.type = StoredType::bf16;
  const bf16 large = to_bf16(1e6f);
  std::memcpy(norm.bytes.data(), &large, sizeof large);
  model.import(save_file(scratch / "large.safetensors", tensors));
  CHECK_THROWS_WITH_AS(write("large"), doctest::Contains("is beyond fp16"), DataError);
  CHECK_FALSE(std::filesystem::exists(scratch / "large"));
}

}  // namespace llmtrain::test
