#include "kernels/cpu/parallel.hpp"

#include <array>
#include <chrono>

#include <doctest/doctest.h>

namespace llmtrain::kernels {

TEST_CASE("tasks begin in order, each once, and those that are waited for are done") {
  constexpr std::int64_t kTasks = 60;
  for (const int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    std::array<std::atomic<int>, kTasks> begun{}, done{};
    std::atomic<int> early = 0, wrong_slot = 0;
    parallel_in_order(threads, kTasks, [&](int slot, std::int64_t task, const TaskOrder& order) {
      if (slot < 0 || slot >= threads) ++wrong_slot;
      ++begun[static_cast<std::size_t>(task)];
      const std::int64_t needed = std::max<std::int64_t>(0, task - 2);
      order.wait_for(needed, slot);
      for (std::int64_t t = 0; t < needed; ++t) {
        if (done[static_cast<std::size_t>(t)] == 0) ++early;
      }
      if (task % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++done[static_cast<std::size_t>(task)];
    });
    CHECK(early == 0);
    CHECK(wrong_slot == 0);
    for (const auto& count : begun) CHECK(count == 1);
    for (const auto& count : done) CHECK(count == 1);
  }
}

TEST_CASE("a task may wait for all before it, and there may be fewer tasks than threads") {
  std::int64_t sum = 0;  // each task alone changes it
  parallel_in_order(7, 3, [&](int slot, std::int64_t task, const TaskOrder& order) {
    order.wait_for(task, slot);
    sum = 10 * sum + task + 1;
  });
  CHECK(sum == 123);
  parallel_in_order(4, 0, [&](int, std::int64_t, const TaskOrder&) { sum = 0; });
  CHECK(sum == 123);
}

}  // namespace llmtrain::kernels
