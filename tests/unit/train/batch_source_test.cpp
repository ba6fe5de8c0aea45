#include "lib/train/batch_source.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/comm/world.hpp"
#include "lib/data/prepare.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/thread_transport.hpp"

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
  const auto alone = make_self_communicator("data");
  const BatchShares one = fill_share_of_batch(stream, 0, 1, *alone, batch);
  CHECK(batch.trained_tokens == 3 + 2);
  CHECK(one.trained == 5.0 / 16);
  CHECK(one.trained_ends == 2.0 / 5);
  fill_share_of_batch(stream, 0, 3, *alone, batch);  // the same sample three times
  CHECK(batch.trained_tokens == 15);
}

TEST_CASE("ranks take parts of a step in their order and know what is trained of the whole") {
  const test::TempDir scratch;
  std::string lines;
  for (char c = 'a'; c < 'm'; ++c) lines += fmt::format("{{\"p\":\"{0}\",\"c\":\"{0}\"}}\n", c);
  const data::SampleStream stream(packed(scratch, lines, 8), 1);
  const auto alone = make_self_communicator("data");
  engine::StepBatch whole;
  const BatchShares shares = fill_share_of_batch(stream, 2, 4, *alone, whole);
  testing::run_job(2, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const auto data = world.make_group("data", {0, 1}, rank);
    engine::StepBatch part;
    const BatchShares same = fill_share_of_batch(stream, 2, 4, *data, part);
    const auto from = whole.tokens.begin() + 2 * 8 * rank;
    const bool right = part.num_samples == 2 && part.first_sample == 2 * rank &&
                       std::equal(part.tokens.begin(), part.tokens.end(), from) &&
                       part.trained_tokens == whole.trained_tokens &&
                       same.trained == shares.trained && same.trained_ends == shares.trained_ends;
    if (!right) throw std::runtime_error(fmt::format("rank {}", rank));
  });
}

TEST_CASE("a step that holds prompts only is refused with its samples") {
  const test::TempDir scratch;
  const data::SampleStream stream(
      packed(scratch, "{\"p\":\"" + std::string(60, 'x') + "\",\"c\":\"y\"}\n", 8), 1);
  REQUIRE(stream.epoch_size() == 8);
  engine::StepBatch batch;
  const auto alone = make_self_communicator("data");
  fill_share_of_batch(stream, 0, 8, *alone, batch);
  CHECK(batch.trained_tokens == 2);
  int refused = 0;
  for (std::uint64_t first = 0; first < 8; first += 2) {
    try {
      fill_share_of_batch(stream, first, 2, *alone, batch);
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
