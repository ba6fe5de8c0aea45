#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include "lib/offload/disk_queue.hpp"

namespace llmtrain::offload {

namespace {

class ThreadQueue final : public DiskQueue {
 public:
  ThreadQueue(int file, int threads) : file_(file) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    requested_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "pread and pwrite"; }

  void submit(const DiskRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    requested_.notify_one();
  }

  void wake(std::uint64_t id) override { complete({.id = id, .result = 0}); }

  DiskCompletion wait() override {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [&] { return !completions_.empty(); });
    const DiskCompletion completion = completions_.front();
    completions_.pop_front();
    return completion;
  }

 private:
  void complete(const DiskCompletion& completion) {
    {
      const std::lock_guard lock(mutex_);
      completions_.push_back(completion);
    }
    completed_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      requested_.wait(lock, [&] { return ending_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const DiskRequest request = requests_.front();
      requests_.pop_front();
      lock.unlock();
      complete({.id = request.id, .result = carry_out(request)});
      lock.lock();
    }
  }

  std::int64_t carry_out(const DiskRequest& request) const {
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t n = request.is_write
                          ? ::pwrite(file_, request.memory.data(), request.memory.size(), offset)
                          : ::pread(file_, request.memory.data(), request.memory.size(), offset);
    return n < 0 ? -errno : n;
  }

  int file_;
  std::mutex mutex_;
  std::condition_variable requested_, completed_;
  std::deque<DiskRequest> requests_;
  std::deque<DiskCompletion> completions_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(int file, int threads) {
  return std::make_unique<ThreadQueue>(file, threads);
}

std::unique_ptr<DiskQueue> make_disk_queue(int file, unsigned depth) {
  const char* wish = std::getenv("LLMTRAIN_IO_URING");
  if (wish == nullptr || std::string_view(wish) != "off") {
    if (auto queue = make_uring_queue(file, depth)) return queue;
  }
  // As many as keep a disk busy; more only take memory for stacks.
  constexpr unsigned kMostThreads = 8;
  return make_thread_queue(file, static_cast<int>(std::min(depth, kMostThreads)));
}

}  // namespace llmtrain::offload
