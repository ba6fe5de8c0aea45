#pragma once
/// A device whose copies beside launches are carried out as late as may be.

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "lib/tensor/host_memory.hpp"

namespace llmtrain::optim {

/// Launches are done at once, copies when somebody waits for them, be it the host or launches. It
/// knows how often somebody asked for a place behind the launches.
class LateMemory final : public HostMemory {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  std::unique_ptr<CopyQueue> make_copy_queue() override { return std::make_unique<Late>(places_); }

 private:
  struct Place final : CopyQueue::Point {
    explicit Place(int of) : number(of) {}
    int number;
  };
  class Late final : public CopyQueue {
   public:
    explicit Late(int& places) : places_(&places) {}
    std::span<std::byte> pin(std::uint64_t bytes) override {
      return pinned_.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xff});
    }
    std::shared_ptr<const Point> launched() override {
      return std::make_shared<const Place>(++*places_);
    }
    void follow(const Point& point) override {
      followed_ = static_cast<const Place&>(point).number;
    }
    std::shared_ptr<const Point> queued() override { return std::make_shared<const Point>(); }
    void hold_launches(const Point&) override { finish(); }
    void to_host(void* pinned, const void* device, std::uint64_t bytes) override {
      add(pinned, device, bytes);
    }
    void to_device(void* device, const void* pinned, std::uint64_t bytes) override {
      add(device, pinned, bytes);
    }
    void finish() override {
      for (const auto& copy : std::exchange(copies_, {})) copy();
    }

   private:
    void add(void* to, const void* from, std::uint64_t bytes) {
      CHECK(followed_ == *places_);  // of this update
      copies_.emplace_back([=] { std::memcpy(to, from, bytes); });
    }
    int* places_;
    int followed_ = 0;
    std::vector<std::function<void()>> copies_;
    std::vector<std::vector<std::byte>> pinned_;
  };

  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
  int places_ = 0;
};

}  // namespace llmtrain::optim
