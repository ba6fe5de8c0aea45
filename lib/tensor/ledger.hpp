#pragma once
/// The memory ledger: every allocation of a device, by category and phase, planned or real.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/hash.hpp"

namespace llmtrain {

enum class Category : std::uint8_t {
  params,
  master,
  grads,
  optimizer,
  activations,
  workspace,
  comm,
  offload,
  snapshot,
};
inline constexpr int kNumCategories = 9;
std::string_view to_string(Category category);

enum class Phase : std::uint8_t { init, step, eval, save };
inline constexpr int kNumPhases = 4;
std::string_view to_string(Phase phase);

/// One line of the allocation trace.
struct AllocationEvent {
  bool is_free = false;
  Category category = Category::params;
  std::string tag;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
  bool operator==(const AllocationEvent&) const = default;
};
std::string to_string(const AllocationEvent& event);

/// Where real allocations first differ from planned ones.
struct TraceDifference {
  std::size_t line = 0;  // counted from 1
  // Empty where that trace had ended.
  std::optional<AllocationEvent> real;
  std::optional<AllocationEvent> planned;
};
/// "line 7: take grads g 512 B at 0 instead of the end".
std::string to_string(const TraceDifference& difference);

using CategoryBytes = std::array<std::uint64_t, kNumCategories>;

/// The instant at which a phase held most.
struct Peak {
  std::uint64_t total_bytes = 0;
  /// Held per category at that instant.
  CategoryBytes at_peak{};
  /// Largest value that each category reached in the phase, at whatever instant.
  CategoryBytes per_category{};
  /// Tag of the allocation that reached the peak.
  std::string tag;
};

/// Counts what is held; owned by a Device and touched only by the thread that runs the step.
class MemoryLedger {
 public:
  void allocated(Category category, std::string_view tag, std::uint64_t bytes,
                 std::uint64_t offset);
  void released(Category category, std::string_view tag, std::uint64_t bytes, std::uint64_t offset);

  /// Enters a phase; its peak starts from what is held now unless it was entered before.
  void enter(Phase phase);
  Phase phase() const { return phase_; }

  std::uint64_t held_bytes() const { return held_total_; }
  std::uint64_t held_bytes(Category category) const { return held_[static_cast<int>(category)]; }
  const Peak& peak(Phase phase) const { return peaks_[static_cast<int>(phase)]; }

  /// Starts an empty trace; every later event is kept until `stop_trace`.
  void start_trace();
  std::vector<AllocationEvent> stop_trace();

  /// Appends every later event to `events` too, until called with null.
  void note_in(std::vector<AllocationEvent>* events) { noted_in_ = events; }

  /// Compares every later event with `planned`, which must live until `stop_comparison`; takes no
  /// memory while the events agree.
  void start_comparison(std::span<const AllocationEvent> planned);
  /// The first difference since then, a missing event included; nothing when all agreed.
  std::optional<TraceDifference> stop_comparison();

 private:
  void note(bool is_free, Category category, std::string_view tag, std::uint64_t bytes,
            std::uint64_t offset);
  void update_peak(std::string_view tag);

  Phase phase_ = Phase::init;
  CategoryBytes held_{};
  std::uint64_t held_total_ = 0;
  std::array<Peak, kNumPhases> peaks_{};
  bool tracing_ = false;
  std::vector<AllocationEvent> trace_;
  std::vector<AllocationEvent>* noted_in_ = nullptr;
  bool comparing_ = false;
  std::span<const AllocationEvent> planned_;
  std::size_t events_compared_ = 0;
  std::optional<TraceDifference> difference_;
};

/// XXH3-128 over all events; equal traces have equal hashes.
Hash128 hash_of(const std::vector<AllocationEvent>& trace);

}  // namespace llmtrain
