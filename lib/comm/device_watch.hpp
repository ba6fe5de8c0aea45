#pragma once
/// Looks after calls that only devices wait for.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lib/tensor/device_group.hpp"

namespace llmtrain {

class ExchangeQueue;

/// Of a process. The host of a device whose peers do not come waits for the device without end; a
/// thread sees it. To be gone before the device.
class DeviceWatch {
 public:
  /// Called once, by that thread, with what is wrong: a call is not done though nothing before it
  /// is under way and the patience of `queue`, which outlives this, is over, or a library fails.
  using GiveUp = std::function<void(const std::string&)>;
  DeviceWatch(const ExchangeQueue& queue, GiveUp give_up);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// `what` names the call and those for whom it waits; `group`, which made it, is asked for
  /// failures as long as the call is not done.
  void add(std::shared_ptr<const DeviceCall> call, const std::shared_ptr<DeviceGroup>& group,
           std::string what);

 private:
  struct Watched {
    std::shared_ptr<const DeviceCall> call;
    std::weak_ptr<DeviceGroup> group;
    std::string what;
  };
  void serve();
  /// Forgets what is done; true if something was.
  bool forget();
  std::string problem_of_oldest() const;

  const ExchangeQueue* queue_;
  GiveUp give_up_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Watched> calls_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace llmtrain
