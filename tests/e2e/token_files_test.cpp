// Runs on token files of other programs.
#include "tests/support/token_files.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/philox.hpp"
#include "lib/data/tokenizer.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

constexpr std::int32_t kEnd = 256;  // of the byte tokenizer
constexpr int kFiles = 6, kDocuments = 10;

/// The same documents three times: as texts (a file each, in text/), as llm.c's (llmc/) and as
/// Megatron-LM's files (megatron/), so named that they have the same names, order and held-out
/// part.
struct Collection {
  Workspace here{kTinyRecipe};

  Collection() {
    const auto tokenizer = data::make_byte_tokenizer();
    const PhiloxKey key = philox_key(4, "test", "documents");
    for (int f = 0; f < kFiles; ++f) {
      const std::string name = fmt::format("{}.bin", static_cast<char>('a' + f));
      test::TokenDocuments documents;
      for (int d = 0; d < kDocuments; ++d) {
        std::string text;
        const auto seed = static_cast<std::uint64_t>(f * kDocuments + d);
        const std::uint64_t words = 3 + philox_below(key, 0, seed, 40);
        for (std::uint64_t w = 0; w < words; ++w) {
          text += fmt::format("word{} ", philox_below(key, 1 + seed, w, 30));
        }
        here.write(fmt::format("text/{}@{}", name, d), text);
        documents.push_back(tokenizer->encode(text));
      }
      here.write("llmc/" + name, f % 2 == 0 ? test::llmc_file<std::uint16_t>(documents, kEnd)
                                            : test::llmc_file<std::uint32_t>(documents, kEnd));
      // Every other one with end tokens, as preprocess_data.py --append-eod makes them.
      const auto megatron =
          f % 2 == 0 ? test::megatron_files<std::uint16_t>(documents, 8)
                     : test::megatron_files<std::int32_t>(test::with_end(documents, kEnd), 4);
      here.write("megatron/" + name, megatron.bin);
      here.write("megatron/" + name.substr(0, 1) + ".idx", megatron.idx);
    }
  }

  /// Weights, state and metrics of a run on `source`.
  std::string outcome(const std::string& source, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides{"data.sources=[" + source + "]"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    std::filesystem::remove_all(here.path / "run");
    const auto result = here.run(overrides);
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    return fingerprint(here.path, 6);
  }
};

}  // namespace

TEST_CASE("a run on token files of llm.c and Megatron-LM is that on the same text") {
  const Collection data;
  for (const char* packing : {"wrapped", "best_fit"}) {
    CAPTURE(packing);
    const std::vector<std::string> more{fmt::format("data.packing.strategy={}", packing)};
    const std::string text = data.outcome("{path: text, max_document_bytes: 0}", more);
    CHECK(text.find("eval/bits_per_byte") != std::string::npos);
    CHECK(data.outcome("{path: llmc}", more) == text);
    CHECK(data.outcome("{path: llmc/*.bin, format: llmc}", more) == text);
    CHECK(data.outcome("{path: megatron}", more) == text);
    CHECK(data.outcome("{path: megatron/*.idx, format: megatron}", more) == text);
  }
}

TEST_CASE("sources of a mixture may be text and token files") {
  const Collection data;
  const std::string text = data.outcome(
      "{path: text, max_document_bytes: 0, weight: 1}, {path: text.txt, weight: 2, "
      "max_document_bytes: 1024}");
  CHECK(data.outcome("{path: megatron, weight: 1}, {path: text.txt, weight: 2, "
                     "max_document_bytes: 1024}") == text);
}

TEST_CASE("a run goes on with a copy of its token files, and not with other ones") {
  const Collection data;
  const auto run = [&](const std::string& source, int steps) {
    return data.here.run({"data.sources=[{path: " + source + "}]",
                          "lr_scheduler={type: constant, warmup: 0}",
                          fmt::format("training.max_steps={}", steps)});
  };
  const auto records = [&] {
    std::string lines;
    for (const train::StepRecord& record : data.here.metrics()) {
      lines += train::reproducible_line(record) + "\n";
    }
    return lines;
  };
  REQUIRE(run("llmc", 6).exit_code == 0);
  const std::string whole = records();
  std::filesystem::remove_all(data.here.path / "run");
  REQUIRE(run("llmc", 4).exit_code == 0);
  std::filesystem::copy(data.here.path / "llmc", data.here.path / "copy");
  REQUIRE(run("copy", 6).exit_code == 0);
  CHECK(whole.find("\"step\":6,\"eval/loss\"") != std::string::npos);
  CHECK(records() == whole);
  std::string changed = read_file(data.here.path / "llmc/c.bin");
  changed[changed.size() - 2] ^= 1;  // the low byte of the last id
  data.here.write("llmc/c.bin", changed);
  const auto refused = run("llmc", 8);
  INFO(refused.output);
  CHECK(refused.exit_code == 4);
  CHECK(refused.output.find("is not what step 6 was trained on") != std::string::npos);
}

TEST_CASE("the data commands read token files, and what they cannot do is refused by key") {
  const Collection data;
  const auto call = [&](std::vector<std::string> arguments, const std::string& source,
                        const std::string& more = "run.seed=5") {
    arguments.insert(arguments.end(), {"data.sources=[" + source + "]", more});
    return data.here.call(arguments);
  };
  const auto held_out = call({"data", "files", "recipe.yaml", "--held-out"}, "{path: llmc}");
  CHECK(held_out.exit_code == 0);
  CHECK(held_out.output.find(".bin@") != std::string::npos);
  const auto shown = call({"data", "inspect", "--sample", "0", "recipe.yaml"}, "{path: megatron}");
  CHECK(holds(shown.output, {"document 0 a.bin@", " bytes)", "w|o|r|d|"}));
  const auto text =
      call({"data", "held-out", "recipe.yaml"}, "{path: text, max_document_bytes: 0}");
  CHECK(text.output.find("word") != std::string::npos);
  CHECK(call({"data", "held-out", "recipe.yaml"}, "{path: llmc}").output == text.output);
  CHECK(call({"plan", "recipe.yaml"}, "{path: megatron}").exit_code == 0);
  const auto keys = call({"check", "recipe.yaml"}, "{path: llmc, format: llmc, text_key: body}");
  CHECK(keys.exit_code == 2);
  CHECK(holds(keys.output, {"data.sources.0.text_key", "hold tokens"}));
  const auto automatic = call({"run", "recipe.yaml"}, "{path: llmc, max_document_bytes: 0}");
  CHECK(automatic.exit_code == 2);
  CHECK(holds(automatic.output, {"data.sources.0.max_document_bytes", "hold tokens"}));
  const auto untrained =
      call({"run", "recipe.yaml"}, "{path: llmc}", "tokenizer={type: bpe, vocab_size: 257}");
  CHECK(untrained.exit_code == 2);
  CHECK(holds(untrained.output, {"tokenizer.path", "hold no text"}));
  data.here.write("cut/a.bin", read_file(data.here.path / "llmc/a.bin").substr(0, 2000));
  const auto damaged = call({"run", "recipe.yaml"}, "{path: cut}");
  CHECK(damaged.exit_code == 4);
  CHECK(holds(damaged.output, {"cut/a.bin", "truncated"}));
}

TEST_CASE("cleaning and job arrays concern the text beside token files") {
  const Collection data;
  data.here.write("more/a.txt", std::string(2000, 'a'));
  data.here.write("more/b.txt", std::string(2000, 'a'));
  data.here.write("more/c.txt", std::string(2000, 'c'));
  const std::vector<std::string> cleaned{"data.cleaning={deduplication: {exact: true}}"};
  const auto prepare = [&](const std::string& sources, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"data", "prepare", "recipe.yaml", sources};
    arguments.insert(arguments.end(), cleaned.begin(), cleaned.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return data.here.call(arguments);
  };
  const auto refused = prepare("data.sources=[{path: llmc}]");
  CHECK(refused.exit_code == 2);
  CHECK(holds(refused.output, {"data.cleaning: does nothing", "tokens, no text"}));

  for (const char* weight : {"", ", weight: 1"}) {
    const std::string sources = fmt::format(
        "data.sources=[{{path: llmc{}}}, {{path: more, max_document_bytes: 0{}}}]", weight, weight);
    for (const std::string shard : {"0/2", "1/2", "0/2"}) {
      CHECK(prepare(sources, {"--shard", shard}).exit_code == 0);
    }
    const auto finished = prepare(sources, {"--finish"});
    INFO(finished.output);
    CHECK(finished.exit_code == 0);
    CHECK(holds(finished.output, {"complete", "exact"}));
  }
}

}  // namespace llmtrain
