#include "lib/tensor/ledger.hpp"

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

void MemoryLedger::allocated(Category category, std::string_view tag, std::uint64_t bytes,
                             std::uint64_t offset) {
  held_[static_cast<int>(category)] += bytes;
  held_total_ += bytes;
  update_peak(tag);
  if (tracing_) trace_.push_back({false, category, std::string(tag), bytes, offset});
}

void MemoryLedger::released(Category category, std::string_view tag, std::uint64_t bytes,
                            std::uint64_t offset) {
  std::uint64_t& held = held_[static_cast<int>(category)];
  require(held >= bytes, "ledger: {} B of {} released but {} held", bytes, to_string(category),
          held);
  held -= bytes;
  held_total_ -= bytes;
  if (tracing_) trace_.push_back({true, category, std::string(tag), bytes, offset});
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

Hash128 hash_of(const std::vector<AllocationEvent>& trace) {
  Hasher128 hasher;
  for (const AllocationEvent& event : trace) {
    hasher.update(to_string(event));
    hasher.update("\n");
  }
  return hasher.digest();
}

}  // namespace llmtrain
