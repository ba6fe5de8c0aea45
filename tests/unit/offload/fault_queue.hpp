#pragma once
/// A queue in front of another one, whose requests are judged before they are made.

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/offload/disk_queue.hpp"

namespace llmtrain::offload {

/// What the tests know of a store's requests.
struct Watched {
  std::mutex mutex;
  int file = -1;
  std::size_t requests = 0, under_way = 0, most_under_way = 0;
  std::vector<DiskRequest> now;
  bool memory_was_shared = false;  // by two requests at a time
  /// The result instead of carrying it out; a shorter request that is carried out; or nothing.
  using Judge = std::function<std::optional<std::int64_t>(DiskRequest&, std::size_t number)>;
  Judge judge = [](DiskRequest&, std::size_t) { return std::nullopt; };
  void judge_by(Judge other) {
    const std::lock_guard lock(mutex);
    judge = std::move(other);
  }
};

class FaultQueue final : public DiskQueue {
 public:
  FaultQueue(std::unique_ptr<DiskQueue> inner, Watched& watched)
      : inner_(std::move(inner)), watched_(watched) {}

  std::string_view name() const override { return inner_->name(); }
  void submit(const DiskRequest& request) override {
    const std::lock_guard lock(watched_.mutex);
    for (const DiskRequest& other : watched_.now) {
      if (other.memory.data() < request.memory.data() + request.memory.size() &&
          request.memory.data() < other.memory.data() + other.memory.size()) {
        watched_.memory_was_shared = true;
      }
    }
    watched_.now.push_back(request);
    watched_.most_under_way = std::max(watched_.most_under_way, ++watched_.under_way);
    DiskRequest judged = request;
    const auto result = watched_.judge(judged, watched_.requests++);
    if (!result) return inner_->submit(judged);
    {
      const std::lock_guard own(mutex_);
      results_.push_back({.id = request.id, .result = *result});
    }
    inner_->wake(kResult);
  }
  void wake(std::uint64_t id) override { inner_->wake(id); }
  DiskCompletion wait() override {
    DiskCompletion completion = inner_->wait();
    if (completion.id == kResult) {
      const std::lock_guard own(mutex_);
      completion = results_.front();
      results_.erase(results_.begin());
    }
    const std::lock_guard lock(watched_.mutex);
    const auto removed = std::erase_if(
        watched_.now, [&](const DiskRequest& request) { return request.id == completion.id; });
    watched_.under_way -= removed;
    return completion;
  }

 private:
  static constexpr std::uint64_t kResult = ~std::uint64_t{1};
  std::unique_ptr<DiskQueue> inner_;
  Watched& watched_;
  std::mutex mutex_;
  std::vector<DiskCompletion> results_;
};

}  // namespace llmtrain::offload
