#include "lib/comm/waits.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"

namespace llmtrain {

namespace {

// How long ranks that wait themselves may take to say for whom: no longer than a process that
// stands still takes to end itself.
TimeLimit for_others(TimeLimit limit) { return std::min(4 * limit, TimeLimit(8)); }

// What lasts so long is no exchange that is about to end.
constexpr std::chrono::milliseconds kMoment{300};

// "rank 2: #7 all_reduce on dp, 4 B, at loss".
std::string who_is_missing(const std::set<int>& ranks, const CollectiveRecord& call) {
  return fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     to_string(call));
}

}  // namespace

void Waits::know(OfOthers others) {
  const std::lock_guard lock(mutex_);
  others_ = std::move(others);
}

std::optional<int> Waits::own() const {
  const int rank = own_;
  return rank == kNobody ? std::nullopt : std::optional(rank);
}

std::optional<int> Waits::of_other(int rank) {
  const std::lock_guard lock(mutex_);
  return others_ ? others_(rank) : std::nullopt;
}

void Waits::fail_unanswered(OpenMessages& messages, TimeLimit limit, TimeLimit waited,
                            const CollectiveRecord& call) {
  const std::set<int> ranks = messages.peers();
  if (ranks.empty()) return;
  std::set<int> missing;
  std::string others;
  for (const int rank : ranks) {
    const std::optional<int> third = of_other(rank);
    if (!third) missing.insert(rank);
    if (third && *third != kNotKnownYet) {
      others += fmt::format("; rank {} waits for rank {} itself", rank, *third);
    }
  }
  if (missing.empty()) {
    if (waited < limit + for_others(limit)) return;
    missing = ranks;
  }
  fail<CommError>("no answer within {:g} s from {}{}", limit.count(), who_is_missing(missing, call),
                  others);
}

void Vigil::look(OpenMessages& messages, const CollectiveRecord& call) {
  static std::atomic<bool> said{false};
  const auto now = Clock::now();
  if (now - looked_ >= kMoment) {
    looked_ = now;
    const std::set<int> ranks = messages.peers();
    waits_->own_ = ranks.empty() ? Waits::kNobody : *ranks.begin();
  }
  // Ranks that live, and were told to stop as well, answer before.
  if (stop_signal() == 0 || said) return;
  if (!told_) told_ = now;
  if (now - *told_ < kMoment) return;
  const std::set<int> ranks = messages.peers();
  if (ranks.empty() || said.exchange(true)) return;
  // No complaint: whom this rank waits for may wait for the one that is gone.
  log::warning("told to stop by signal {} while waiting (perhaps for one that waits itself) for {}",
               stop_signal(), who_is_missing(ranks, call));
}

}  // namespace llmtrain
