#pragma once
/// Host memory as a device whose work nobody does before somebody waits for it.

#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "lib/tensor/device.hpp"

namespace llmtrain::testing {

/// Launches and queues of copies. What one of them follows in another is done when it comes to
/// that, as late as can be; so whoever does not wait reads what was there before. With
/// Copying::early a copy is done at once where it follows nothing that is yet to be launched: one
/// that does not wait overwrites what is still read, or copies what is not yet there.
class LazyMemory final : public MemoryBackend {
 public:
  enum class Copying : std::uint8_t { late, early };
  explicit LazyMemory(Copying copying = Copying::late) : copying_(copying) {}

  DeviceKind kind() const override { return DeviceKind::cuda; }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override {
    synchronize();
    memory_->copy_to_host(host, device, bytes);
  }
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override {
    const auto* from = static_cast<const std::byte*>(host);
    launch([this, device, bytes, kept = std::vector<std::byte>(from, from + bytes)] {
      memory_->copy_from_host(device, kept.data(), bytes);
    });
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override {
    launch([=, this] { memory_->copy_on_device(to, from, bytes); });
  }
  void synchronize() override {
    const std::lock_guard lock(mutex_);
    do_until(launched_);
  }
  std::unique_ptr<CopyQueue> make_copy_queue() override { return std::make_unique<Copies>(*this); }

  /// A kernel.
  void launch(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    launches_.push_back(std::move(work));
    ++launched_;
  }

 private:
  struct Place final : CopyQueue::Point {
    explicit Place(std::int64_t n) : number(n) {}
    std::int64_t number;
  };
  class Copies final : public CopyQueue {
   public:
    explicit Copies(LazyMemory& memory) : memory_(&memory) {
      const std::lock_guard lock(memory_->mutex_);
      memory_->queues_.insert(this);
    }
    ~Copies() override {
      const std::lock_guard lock(memory_->mutex_);
      memory_->queues_.erase(this);
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    std::span<std::byte> pin(std::uint64_t bytes) override {
      return pinned_.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xff});
    }
    std::shared_ptr<const Point> launched() override {
      const std::lock_guard lock(memory_->mutex_);
      return std::make_shared<const Place>(memory_->launched_);
    }
    void follow(const Point& point) override {
      const std::int64_t number = number_of(point);
      const auto wait = [this, number] {
        const std::lock_guard lock(memory_->mutex_);
        memory_->do_until(number);
      };
      add(wait, number);
    }
    std::shared_ptr<const Point> queued() override {
      const std::lock_guard lock(memory_->mutex_);
      return std::make_shared<const Place>(queued_);
    }
    void hold_launches(const Point& point) override {
      memory_->launch([this, number = number_of(point)] { do_until(number); });
    }
    void to_host(void* pinned, const void* device, std::uint64_t bytes) override {
      add([=, this] { memory_->memory_->copy_to_host(pinned, device, bytes); });
    }
    void to_device(void* device, const void* pinned, std::uint64_t bytes) override {
      add([=, this] { memory_->memory_->copy_from_host(device, pinned, bytes); });
    }
    void finish() override {
      const std::lock_guard lock(memory_->mutex_);
      do_until(queued_);
    }
    void do_what_is_ready() {
      // What is behind something that is being done is not.
      while (under_way_ == 0 && !queue_.empty() && queue_.front().second <= memory_->begun_)
        do_until(begun_ + 1);
    }

   private:
    static std::int64_t number_of(const Point& point) {
      return static_cast<const Place&>(point).number;
    }
    void add(std::function<void()> work, std::int64_t follows = 0) {
      const std::lock_guard lock(memory_->mutex_);
      queue_.emplace_back(std::move(work), follows);
      ++queued_;
      if (memory_->copying_ == Copying::early) do_what_is_ready();
    }
    // Launches that hold for copies, and copies that follow launches, call each other.
    void do_until(std::int64_t number) {
      while (begun_ < number) {
        const std::function<void()> next = std::move(queue_.front().first);
        queue_.pop_front();
        ++begun_;
        ++under_way_;
        next();
        --under_way_;
      }
    }

    LazyMemory* memory_;
    std::list<std::vector<std::byte>> pinned_;
    std::deque<std::pair<std::function<void()>, std::int64_t>> queue_;
    std::int64_t queued_ = 0, begun_ = 0;
    int under_way_ = 0;
  };

  void do_until(std::int64_t number) {
    while (begun_ < number) {
      const std::function<void()> next = std::move(launches_.front());
      launches_.pop_front();
      ++begun_;
      next();
      if (copying_ == Copying::late) continue;
      for (Copies* const queue : queues_) queue->do_what_is_ready();
    }
  }

  Copying copying_;
  std::set<Copies*> queues_;
  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
  std::recursive_mutex mutex_;
  std::deque<std::function<void()>> launches_;
  std::int64_t launched_ = 0, begun_ = 0;
};

}  // namespace llmtrain::testing
