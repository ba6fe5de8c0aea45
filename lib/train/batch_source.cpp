#include "lib/train/batch_source.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::train {

namespace {

data::SampleView view_of(engine::StepBatch& batch, std::int64_t sample) {
  const auto length = static_cast<std::size_t>(batch.seq_len);
  const auto begin = static_cast<std::size_t>(sample) * length;
  return {std::span(batch.tokens).subspan(begin, length),
          std::span(batch.targets).subspan(begin, length),
          std::span(batch.doc_begin).subspan(begin, length),
          std::span(batch.positions).subspan(begin, length)};
}

}  // namespace

BatchShares fill_share_of_batch(const data::MixedStream& stream, std::uint64_t first_sample,
                                std::int64_t count, Communicator& data, engine::StepBatch& batch) {
  const std::int64_t share = count / data.size();
  batch.first_sample = share * data.rank();
  batch.resize(share, stream.seq_len());
  struct Counts {
    std::int64_t tokens = 0, ends = 0;
  } mine;
  for (std::int64_t s = 0; s < share; ++s) {
    const std::uint64_t index = first_sample + static_cast<std::uint64_t>(batch.first_sample + s);
    mine.tokens += stream.read(index, view_of(batch, s));
  }
  mine.ends = std::count(batch.targets.begin(), batch.targets.end(), stream.end_id());
  Counts all;
  for (const Counts& of_rank : data.gather_values(mine, "trained tokens")) {
    all.tokens += of_rank.tokens;
    all.ends += of_rank.ends;
  }
  require<DataError>(all.tokens > 0,
                     "samples {} to {} of the run, which make one step, have no trained token: "
                     "they hold prompts only; raise training.global_batch_size or seq_len, or "
                     "leave out lines whose prompt is longer than several samples",
                     first_sample, first_sample + static_cast<std::uint64_t>(count) - 1);
  batch.trained_tokens = all.tokens;
  const auto tokens = static_cast<double>(all.tokens);
  return {.trained = tokens / static_cast<double>(count * stream.seq_len()),
          .trained_ends = static_cast<double>(all.ends) / tokens};
}

void fill_eval_batch(const data::EvalWindows& windows, std::uint64_t first_window,
                     std::int64_t count, engine::StepBatch& batch) {
  batch.first_sample = 0;
  batch.resize(count, windows.samples().options().seq_len);
  batch.trained_tokens = 0;
  for (std::int64_t s = 0; s < count; ++s) {
    batch.trained_tokens +=
        windows.read(first_window + static_cast<std::uint64_t>(s), view_of(batch, s));
  }
}

}  // namespace llmtrain::train
