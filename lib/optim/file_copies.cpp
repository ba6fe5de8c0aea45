#include "lib/optim/file_copies.hpp"

#include <algorithm>
#include <future>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::optim {

class FileCopies::Ascent final : public ValuesElsewhere::Coming {
 public:
  using Ends = std::vector<std::pair<CopyQueue*, Point>>;
  explicit Ascent(std::future<Ends> ends) : ends_(std::move(ends)) {}
  void arrive() override {
    const trace::Scope span(trace::Kind::io, "wait for parameters");
    for (const auto& [queue, end] : ends_.get()) queue->hold_launches(*end);
  }

 private:
  std::future<Ends> ends_;
};

FileCopies::FileCopies(const OffloadedStates& file, std::vector<CopyLane> lanes, bool is_planned)
    : file_(&file), lanes_(std::move(lanes)), is_planned_(is_planned) {}

std::unique_ptr<ValuesElsewhere::Coming> FileCopies::bring(
    std::vector<ValuesElsewhere::CopyRead> reads) {
  require(reads.empty() || !lanes_.empty(), "parameters that come from a file without a lane");
  // Launches so far may work with what was in that memory before.
  const Point launched = lanes_.empty() ? nullptr : lanes_.front().queue->launched();
  auto send = [this, launched, reads = std::move(reads)] { return send_up(reads, launched); };
  // Where there is no thread to be had, who waits reads.
  return std::make_unique<Ascent>(is_planned_ ? std::async(std::launch::deferred, std::move(send))
                                              : std::async(std::move(send)));
}

std::vector<std::pair<CopyQueue*, FileCopies::Point>> FileCopies::send_up(
    const std::vector<ValuesElsewhere::CopyRead>& reads, const Point& launched) {
  const std::lock_guard lock(mutex_);
  OffloadedStates::CopyReader reader(*file_);
  std::vector<bool> follows(lanes_.size());
  for (const ValuesElsewhere::CopyRead& read : reads) {
    const std::uint64_t element = size_of(read.parameter->compute_dtype());
    for (std::uint64_t at = 0; at < read.to.size();) {
      const std::size_t l = std::exchange(next_lane_, (next_lane_ + 1) % lanes_.size());
      const CopyLane& lane = lanes_[l];
      // What went up from its memory before is on the device.
      lane.queue->finish();
      if (!follows[l]) lane.queue->follow(*launched);
      follows[l] = true;
      const std::uint64_t bytes = std::min<std::uint64_t>(lane.memory.size(), read.to.size() - at);
      reader.read(*read.parameter, static_cast<std::int64_t>(at / element),
                  lane.memory.first(bytes));
      lane.queue->to_device(read.to.data() + at, lane.memory.data(), bytes);
      brought_bytes_ += bytes;
      at += bytes;
    }
  }
  std::vector<std::pair<CopyQueue*, Point>> ends;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    if (follows[l]) ends.emplace_back(lanes_[l].queue, lanes_[l].queue->queued());
  }
  return ends;
}

}  // namespace llmtrain::optim
