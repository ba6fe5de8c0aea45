#include "lib/tensor/ledger.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {
constexpr std::array<std::string_view, kNumCategories> kCategoryNames{
    "params",    "master", "grads",   "optimizer", "activations",
    "workspace", "comm",   "offload", "snapshot"};
constexpr std::array<std::string_view, kNumPhases> kPhaseNames{"init", "step", "eval", "save"};
}  // namespace

std::string_view to_string(Category category) { return kCategoryNames[static_cast<int>(category)]; }
std::string_view to_string(Phase phase) { return kPhaseNames[static_cast<int>(phase)]; }

std::string to_string(const AllocationEvent& event) {
  return fmt::format("{} {} {} {} B at {}", event.is_free ? "free" : "take",
                     to_string(event.category), event.tag, event.bytes, event.offset);
}

std::string to_string(const TraceDifference& difference) {
  const auto name = [](const std::optional<AllocationEvent>& event) {
    return event ? to_string(*event) : std::string("the end");
  };
  return fmt::format("line {}: {} instead of {}", difference.line, name(difference.real),
                     name(difference.planned));
}

void MemoryLedger::allocated(Category category, std::string_view tag, std::uint64_t bytes,
                             std::uint64_t offset) {
  held_[static_cast<int>(category)] += bytes;
  held_total_ += bytes;
  update_peak(tag);
  note(false, category, tag, bytes, offset);
}

void MemoryLedger::released(Category category, std::string_view tag, std::uint64_t bytes,
                            std::uint64_t offset) {
  std::uint64_t& held = held_[static_cast<int>(category)];
  require(held >= bytes, "ledger: {} B of {} released but {} held", bytes, to_string(category),
          held);
  held -= bytes;
  held_total_ -= bytes;
  note(true, category, tag, bytes, offset);
}

void MemoryLedger::note(bool is_free, Category category, std::string_view tag, std::uint64_t bytes,
                        std::uint64_t offset) {
  if (tracing_) trace_.push_back({is_free, category, std::string(tag), bytes, offset});
  if (noted_in_ != nullptr) {
    noted_in_->push_back({is_free, category, std::string(tag), bytes, offset});
  }
  if (!comparing_ || difference_) return;
  const std::size_t i = events_compared_++;
  const AllocationEvent* planned = i < planned_.size() ? &planned_[i] : nullptr;
  if (planned != nullptr && planned->is_free == is_free && planned->category == category &&
      planned->tag == tag && planned->bytes == bytes && planned->offset == offset) {
    return;
  }
  difference_ = TraceDifference{
      .line = i + 1, .real = AllocationEvent{is_free, category, std::string(tag), bytes, offset}};
  if (planned != nullptr) difference_->planned = *planned;
}

void MemoryLedger::enter(Phase phase) {
  phase_ = phase;
  update_peak("start of phase");
}

void MemoryLedger::update_peak(std::string_view tag) {
  Peak& peak = peaks_[static_cast<int>(phase_)];
  for (int c = 0; c < kNumCategories; ++c) {
    peak.per_category[c] = std::max(peak.per_category[c], held_[c]);
  }
  if (held_total_ > peak.total_bytes) {
    peak.total_bytes = held_total_;
    peak.at_peak = held_;
    peak.tag = tag;
  }
}

void MemoryLedger::start_trace() {
  tracing_ = true;
  trace_.clear();
}

std::vector<AllocationEvent> MemoryLedger::stop_trace() {
  tracing_ = false;
  return std::move(trace_);
}

void MemoryLedger::start_comparison(std::span<const AllocationEvent> planned) {
  comparing_ = true;
  planned_ = planned;
  events_compared_ = 0;
  difference_.reset();
}

std::optional<TraceDifference> MemoryLedger::stop_comparison() {
  comparing_ = false;
  if (!difference_ && events_compared_ < planned_.size()) {
    difference_ =
        TraceDifference{.line = events_compared_ + 1, .planned = planned_[events_compared_]};
  }
  planned_ = {};
  return std::exchange(difference_, std::nullopt);
}

Hash128 hash_of(const std::vector<AllocationEvent>& trace) {
  Hasher128 hasher;
  for (const AllocationEvent& event : trace) {
    hasher.update(to_string(event));
    hasher.update("\n");
  }
  return hasher.digest();
}

}  // namespace llmtrain
