#pragma once
/// A thread that does what it is given, one after the other.

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace llmtrain {

class TaskThread {
 public:
  TaskThread() : thread_([this] { serve(); }) {}
  /// Waits for the task under way; those that have not begun never do.
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  /// What it returns, or throws.
  template <class Work>
  std::future<std::invoke_result_t<Work>> add(Work work) {
    std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
    auto result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace_back([task = std::move(task)]() mutable { task(); });
    }
    changed_.notify_one();
    return result;
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      std::packaged_task<void()> next = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;  // uses all of the above
};

}  // namespace llmtrain
