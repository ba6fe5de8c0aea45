// Collectives whose members have parts of different sizes.
#include <array>
#include <atomic>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/comm/job_rank.hpp"

using namespace llmtrain;
using testing::kSizes;
using testing::Rank;
using testing::run_job;
using testing::sum_of_terms;
using testing::term;
using testing::values;

namespace {

// Parts of members that differ: none, one element, and more than a piece of the staging.
std::vector<std::int64_t> uneven_counts(int ranks) {
  constexpr std::array<std::int64_t, 8> kParts{0, 150'001, 1, 77, 0, 30'000, 2048, 0};
  return {kParts.begin(), kParts.begin() + ranks};
}

// Scatters sums into, and gathers from, the members' own parts of one tensor.
void scatter_and_gather_in_place(Rank& self, std::span<const std::int64_t> counts,
                                 std::atomic<int>& wrong) {
  const auto ranks = static_cast<int>(counts.size());
  const auto count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const auto first = std::accumulate(counts.begin(), counts.begin() + self.rank(), std::int64_t{0});
  const auto last = first + counts[static_cast<std::size_t>(self.rank())];
  const Tensor data = self.tensor(DType::f32, count);
  const auto x = values<float>(data);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = term(self.rank(), i);
  const Tensor mine = data.columns(first, last - first);
  self.group->reduce_scatter_parts(data, mine, counts, "test").wait();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const bool is_mine = first <= at && at < last;
    wrong += x[i] != (is_mine ? sum_of_terms(ranks, i) : term(self.rank(), i));
  }
  self.group->all_gather_parts(mine, data, counts, "test").wait();
  for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != sum_of_terms(ranks, i);
}

}  // namespace

TEST_CASE("parts of any sizes are scattered and gathered in place, to the bit") {
  for (const int ranks : kSizes) {
    CAPTURE(ranks);
    const std::vector<std::int64_t> counts = uneven_counts(ranks);
    std::atomic<int> wrong{0};
    const auto sent = run_job(ranks, [&](Transport& transport) {
      Rank self(transport);
      scatter_and_gather_in_place(self, counts, wrong);
    });
    CHECK(wrong == 0);
    const auto count =
        static_cast<std::uint64_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    for (std::size_t r = 0; r < sent.size(); ++r) {
      const auto own = static_cast<std::uint64_t>(counts[r]);
      const auto others = static_cast<std::uint64_t>(ranks - 1);
      CHECK(sent[r] == 4 * (count - own) + 4 * others * own);
    }
  }
}

TEST_CASE("counts that do not fit the group or its tensors are refused") {
  run_job(2, [&](Transport& transport) {
    Rank self(transport);
    const Tensor part = self.tensor(DType::f32, 3);
    const Tensor whole = self.tensor(DType::f32, 6);
    const auto refused = [&](std::vector<std::int64_t> counts) {
      bool thrown = false;
      try {
        self.group->all_gather_parts(part, whole, counts, "test").wait();
      } catch (const InternalError&) {
        thrown = true;
      }
      if (!thrown) throw std::runtime_error("counts were taken");
    };
    refused({3, 3, 0});
    refused({6});
    refused({3, 4});
    refused({4, 2});
    refused({7, -1});
  });
}

// Member r sends r + m elements to member m, and nothing to itself.
TEST_CASE("all_to_all of parts of any sizes brings each its own") {
  run_job(4, [&](Transport& transport) {
    Rank self(transport);
    std::vector<std::int64_t> sends, receives;
    for (int m = 0; m < 4; ++m) {
      sends.push_back(m == self.rank() ? 0 : self.rank() + m - 1);
      receives.push_back(sends.back());
    }
    const Tensor from = self.tensor(DType::i32, 20), to = self.tensor(DType::i32, 20);
    std::int64_t at = 0;
    for (int m = 0; m < 4; ++m) {
      for (std::int64_t i = 0; i < sends[static_cast<std::size_t>(m)]; ++i) {
        values<std::int32_t>(from)[static_cast<std::size_t>(at++)] =
            static_cast<std::int32_t>(100 * self.rank() + 10 * m + i);
      }
    }
    values<std::int32_t>(to)[19] = -1;
    self.group->all_to_all_parts(from, sends, to, receives, "test").wait();
    at = 0;
    for (int m = 0; m < 4; ++m) {
      for (std::int64_t i = 0; i < receives[static_cast<std::size_t>(m)]; ++i) {
        if (values<std::int32_t>(to)[static_cast<std::size_t>(at++)] !=
            static_cast<std::int32_t>(100 * m + 10 * self.rank() + i)) {
          throw std::runtime_error("all_to_all of parts");
        }
      }
    }
    if (values<std::int32_t>(to)[19] != -1) throw std::runtime_error("beyond the parts");
    if (self.group->uneven_bytes_sent() != static_cast<std::uint64_t>(at) * 4) {
      throw std::runtime_error("bytes sent");
    }
    bool thrown = false;
    try {
      self.group->all_to_all_parts(from, {sends.data(), 3}, to, receives, "test").wait();
    } catch (const InternalError&) {
      thrown = true;
    }
    if (!thrown) throw std::runtime_error("three counts were taken");
    const std::array<std::int64_t, 2> mine{self.rank(), 7};
    if (self.group->gather_numbers(mine, "test") !=
        std::vector<std::int64_t>{0, 7, 1, 7, 2, 7, 3, 7}) {
      throw std::runtime_error("numbers");
    }
  });
}
