#include "lib/data/eval_windows.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::data {

EvalWindows::EvalWindows(std::shared_ptr<const PackedSamples> samples, std::int64_t stride)
    : samples_(std::move(samples)), stride_(static_cast<std::uint64_t>(stride)) {
  const std::int64_t length = samples_->options().seq_len;
  require<RecipeError>(stride >= 1 && stride <= length, "stride {} is not between 1 and seq_len {}",
                       stride, length);
  const std::uint64_t rows = samples_->row_count();
  const std::uint64_t first = std::min(rows, static_cast<std::uint64_t>(length));
  count_ = 1 + (rows - first + stride_ - 1) / stride_;
}

std::int64_t EvalWindows::read(std::uint64_t index, SampleView out) const {
  require(index < count_, "window {} of {}", index, count_);
  const std::int64_t rows = samples_->read_rows(index * stride_, out);
  if (index == 0) return rows;
  const std::int64_t seen = samples_->options().seq_len - static_cast<std::int64_t>(stride_);
  std::fill_n(out.targets.begin(), seen, kNoTarget);
  return std::count_if(out.targets.begin(), out.targets.end(),
                       [](std::int32_t target) { return target != kNoTarget; });
}

}  // namespace llmtrain::data
