#include "lib/base/task_thread.hpp"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("a thread does its tasks in their order, and hands on what they return and throw") {
  std::vector<int> done;
  std::vector<std::future<void>> all;
  TaskThread thread;
  for (int i = 0; i < 100; ++i) all.push_back(thread.add([&done, i] { done.push_back(i); }));
  auto text = thread.add([] { return std::string("text"); });
  auto error = thread.add([]() -> int { throw std::runtime_error("thrown"); });
  for (std::future<void>& one : all) one.get();
  for (int i = 0; i < 100; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
  CHECK(text.get() == "text");
  CHECK_THROWS_WITH(error.get(), "thrown");
}

TEST_CASE("tasks that have not begun never do when their thread ends") {
  constexpr int kTasks = 100'000;
  int begun = 0, ended = 0;
  std::future<void> last;
  {
    TaskThread thread;
    for (int i = 0; i < kTasks; ++i) {
      last = thread.add([&] {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
      });
    }
  }
  CHECK(begun < kTasks);
  CHECK(ended == begun);
  CHECK_THROWS_AS(last.get(), std::future_error);
}

}  // namespace llmtrain
