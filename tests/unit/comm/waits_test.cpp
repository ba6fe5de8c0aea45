// Whom a rank names that gets no answer, where others wait, too.
#include "lib/comm/waits.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/comm/job_rank.hpp"

using namespace llmtrain;
using testing::Rank;
using testing::run_job;

namespace {

/// What rank 0 of three says that waits for both others, after it has asked for each of them.
std::string complaint(TimeLimit limit, const Waits::OfOthers& others) {
  std::string text;
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    self.world.configure(limit, false);
    self.group->barrier("start");
    if (self.rank() != 0) return;
    self.world.waits()->know(others);
    try {
      self.group->barrier("end");
    } catch (const CommError& error) {
      text = error.what();
    }
  });
  return text;
}

}  // namespace

TEST_CASE("in a chain of ranks that wait the one before the end names it first") {
  std::array<std::atomic<Waits*>, 3> waits{};
  std::atomic<int> order{0}, first_order{-1}, second_order{-1};
  std::array<std::string, 2> said;
  std::atomic<bool> over{false};
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    const int rank = self.rank();
    const std::vector<int> pairs[] = {{0, 1}, {1, 2}};
    std::unique_ptr<Communicator> group;
    if (rank < 2) group = self.world.make_group("pair", pairs[rank], 0);
    waits[static_cast<std::size_t>(rank)] = self.world.waits();
    self.group->barrier("start");
    if (rank == 2) {
      while (!over) std::this_thread::yield();
      return;
    }
    self.world.waits()->know(
        [&](int other) { return waits[static_cast<std::size_t>(other)].load()->own(); });
    // Rank 0 is out of patience long before rank 1.
    self.world.set_patience(TimeLimit(rank == 0 ? 0.6 : 1.5));
    try {
      group->barrier("pair");
    } catch (const CommError& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
      (rank == 0 ? first_order : second_order) = order++;
    }
    if (rank == 0) over = true;
    while (!over) std::this_thread::yield();
  });
  CHECK(second_order == 0);
  CHECK(first_order == 1);
  CHECK(said[1].find("no answer within 1.5 s from rank 2: #") == 0);
  CHECK(said[0].find("no answer within 0.6 s from rank 1: #") == 0);
}

TEST_CASE("of several that do not answer those are named that do not wait themselves") {
  const auto known = [](int rank) { return rank == 1 ? std::optional(2) : std::nullopt; };
  CHECK(
      complaint(TimeLimit(0.2), known) ==
      "no answer within 0.2 s from rank 2: #1 barrier on all, 0 B, at end; rank 1 waits for rank 2 "
      "itself");
  CHECK(complaint(TimeLimit(0.2), {}) ==
        "no answer within 0.2 s from ranks 1, 2: #1 barrier on all, 0 B, at end");
}

TEST_CASE("who wait for each other are named after a while, and not before all is known") {
  int asked = 0;
  const std::string circle = complaint(TimeLimit(0.2), [&](int rank) {
    ++asked;
    return 3 - rank;
  });
  CHECK(asked > 10);
  CHECK(circle ==
        "no answer within 0.2 s from ranks 1, 2: #1 barrier on all, 0 B, at end; rank 1 waits for "
        "rank 2 itself; rank 2 waits for rank 1 itself");
  asked = 0;
  const std::string late = complaint(TimeLimit(0.2), [&](int) {
    return ++asked <= 20 ? std::optional(Waits::kNotKnownYet) : std::nullopt;
  });
  CHECK(asked == 22);
  CHECK(late == "no answer within 0.2 s from ranks 1, 2: #1 barrier on all, 0 B, at end");
}
