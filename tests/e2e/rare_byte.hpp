#pragma once
/// Runs with a model that is NaN, or has a large loss, for one rare byte: a step is bad exactly
/// when one of its samples reads that byte.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/corpus.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

inline constexpr std::int64_t kSteps = 40;
inline constexpr std::int32_t kRareByte = 'Z';
inline constexpr int kHidden = 16;

// Makes the embedding of the rare byte this in an exported model.
inline void poison(const std::filesystem::path& file, float value) {
  std::string content = read_file(file);
  std::uint64_t header_bytes = 0;
  std::copy_n(content.begin(), 8, reinterpret_cast<char*>(&header_bytes));
  const auto header = nlohmann::json::parse(content.substr(8, header_bytes));
  const std::uint64_t begin = header.at("model.embed_tokens.weight").at("data_offsets").at(0);
  for (int i = 0; i < kHidden; ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(kRareByte) * kHidden + i;
    std::copy_n(
        reinterpret_cast<const char*>(&value), sizeof value,
        content.begin() + static_cast<std::ptrdiff_t>(8 + header_bytes + begin + 4 * element));
  }
  write_file_atomic(file, content);
}

// A workspace whose second source, which is not held out, holds the rare byte.
struct RareByte {
  Workspace here{kTinyRecipe};
  std::vector<std::string> overrides;
  std::vector<bool> bad{false};  // by step, from 1

  explicit RareByte(float embedding = std::nanf("")) {
    int number = 0;
    while (data::is_held_out(name(number), {.modulus = 4, .remainder = 0})) ++number;
    std::string text;
    for (int i = 0; i < 1500; ++i) text += "Z ";
    here.write(name(number), text);
    REQUIRE(here.run().exit_code == 0);
    REQUIRE(here.call({"ckpt", "export", "run", "poisoned"}).exit_code == 0);
    poison(here.path / "poisoned" / "model.safetensors", embedding);
    std::filesystem::remove_all(here.path / "run");
    const auto sources = [&](const std::string& folder) {
      return fmt::format(
          "data.sources=[{{path: {}text.txt, max_document_bytes: 1024}}, {{path: {}{}, "
          "max_document_bytes: 0}}]",
          folder, folder, name(number));
    };
    overrides = {"model.init_from=poisoned",     "training.micro_batch_size=1",
                 "training.global_batch_size=1", "lr_scheduler={type: constant, warmup: 0}",
                 "checkpoint.interval=1",        "eval.interval=null",
                 "training.max_steps=40"};
    std::vector<std::string> elsewhere = overrides;
    overrides.push_back(sources(""));
    elsewhere.push_back(sources(here.path.string() + "/"));
    elsewhere.push_back("data.cache_dir=" + (here.path / "other-cache").string());
    find_bad_steps(elsewhere);
  }

  static std::string name(int number) { return fmt::format("z{}.txt", number); }

  void find_bad_steps(const std::vector<std::string>& with) {
    const auto recipe = train::load_recipe(here.path / "recipe.yaml", with);
    const train::Corpus corpus = train::open_corpus(*recipe);
    const data::SampleStream stream(corpus.parts.front().training, recipe->run.seed());
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kSteps); ++i) {
      const data::Sample sample = stream.sample_at(i);
      bad.push_back(std::count(sample.tokens.begin(), sample.tokens.end(), kRareByte) > 0);
    }
  }

  // The step at which `length` bad ones in a row are reached first; 0 if never.
  std::int64_t first_row_of(std::int64_t length) const {
    std::int64_t row = 0;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      row = bad[static_cast<std::size_t>(step)] ? row + 1 : 0;
      if (row == length) return step;
    }
    return 0;
  }

  std::int64_t longest_row() const {
    std::int64_t length = 0;
    while (first_row_of(length + 1) > 0) ++length;
    return length;
  }

  test::ProcessResult run(const std::vector<std::string>& more) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return here.run(all);
  }
};

}  // namespace llmtrain
