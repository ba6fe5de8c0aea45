#include "lib/comm/device_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lib/base/patience.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/exchange_queue.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPeriod{200};

}  // namespace

DeviceWatch::DeviceWatch(const ExchangeQueue& queue, GiveUp give_up)
    : queue_(&queue), give_up_(std::move(give_up)), thread_([this] { serve(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DeviceWatch::add(std::shared_ptr<const DeviceCall> call,
                      const std::shared_ptr<DeviceGroup>& group, std::string what) {
  const std::lock_guard lock(mutex_);
  // Whoever is done need not be remembered until the next look.
  while (!calls_.empty() && calls_.front().call->is_done()) calls_.pop_front();
  calls_.push_back({std::move(call), group, std::move(what)});
}

bool DeviceWatch::forget() {
  return std::erase_if(calls_, [](const Watched& w) { return w.call->is_done(); }) > 0;
}

std::string DeviceWatch::problem_of_oldest() const {
  try {
    if (const auto group = calls_.front().group.lock()) group->check();
    return "";
  } catch (const Error& error) {
    return fmt::format("{} ({})", error.what(), calls_.front().what);
  }
}

// Patience begins anew with every call that is done: the device may have much to do before a call.
void DeviceWatch::serve() {
  auto progress = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    if (forget() || calls_.empty()) {
      progress = Clock::now();
      continue;
    }
    std::string problem = problem_of_oldest();
    const TimeLimit patience = queue_->patience();
    if (problem.empty() && waited_longer(progress, patience)) {
      problem =
          fmt::format("no answer within {:g} s from {}", patience.count(), calls_.front().what);
    }
    if (problem.empty()) continue;
    lock.unlock();
    give_up_(problem);
    return;
  }
}

}  // namespace llmtrain
