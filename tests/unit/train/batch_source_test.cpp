#include "lib/train/batch_source.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/data/prepare.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

std::shared_ptr<const data::PackedSamples> packed(const test::TempDir& scratch,
                                                  const std::string& lines, std::int64_t seq_len) {
  write_file_atomic(scratch / "pairs.jsonl", lines);
  data::SourceOptions source;
  source.path = scratch / "pairs.jsonl";
  source.prompt_key = "p";
  source.completion_key = "c";
  const auto tokenizer = data::make_byte_tokenizer();
  auto set = std::make_shared<data::TokenSet>(data::open_or_prepare(
      data::list_source_files(std::span(&source, 1)), *tokenizer, {}, scratch / "out"));
  return std::make_shared<data::PackedSamples>(std::move(set), *tokenizer,
                                               data::PackingOptions{.seq_len = seq_len});
}

}  // namespace

TEST_CASE("a batch counts its trained tokens and the ends among them") {
  const test::TempDir scratch;
  const data::SampleStream stream(
      packed(scratch, "{\"p\":\"abc\",\"c\":\"de\"}\n{\"p\":\"f\",\"c\":\"g\"}\n", 16), 1);
  engine::StepBatch batch;
  fill_training_batch(stream, 0, 1, batch);
  CHECK(batch.trained_tokens == 3 + 2);
  CHECK(batch.trained_ends == 2);
  fill_training_batch(stream, 0, 3, batch);  // the same sample three times
  CHECK(batch.trained_tokens == 15);
  CHECK(batch.trained_ends == 6);
}

TEST_CASE("a step that holds prompts only is refused with its samples") {
  const test::TempDir scratch;
  const data::SampleStream stream(
      packed(scratch, "{\"p\":\"" + std::string(60, 'x') + "\",\"c\":\"y\"}\n", 8), 1);
  REQUIRE(stream.epoch_size() == 8);
  engine::StepBatch batch;
  fill_training_batch(stream, 0, 8, batch);
  CHECK(batch.trained_tokens == 2);
  int refused = 0;
  for (std::uint64_t first = 0; first < 8; first += 2) {
    try {
      fill_training_batch(stream, first, 2, batch);
    } catch (const DataError& e) {
      ++refused;
      CHECK(std::string(e.what()).find(fmt::format(
                "samples {} to {} of the run, which make one step, have no trained token", first,
                first + 1)) == 0);
    }
  }
  CHECK(refused == 3);
}

}  // namespace llmtrain::train
