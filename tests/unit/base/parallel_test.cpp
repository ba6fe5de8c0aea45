#include "lib/base/parallel.hpp"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("a parallel loop calls its body once for each number") {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> calls(1000);
    parallel_for(calls.size(), threads, [&](std::size_t i) { ++calls[i]; });
    for (const std::atomic<int>& count : calls) CHECK(count == 1);
  }
  parallel_for(0, 2, [](std::size_t) { FAIL("there is nothing to do"); });
}

TEST_CASE("a parallel loop throws the first of its exceptions, and begins nothing behind it") {
  for (const int threads : {1, 2, 7}) {
    std::atomic<int> calls = 0;
    std::string message;
    try {
      parallel_for(100'000, threads, [&](std::size_t i) {
        ++calls;
        if (i >= 20 && i % 2 == 0) throw std::runtime_error(std::to_string(i));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "20");
    CHECK(calls < 100'000);
  }
}

}  // namespace llmtrain
