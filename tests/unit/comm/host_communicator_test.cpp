// Collectives on the host against their definitions, over threads that are the ranks of a job.
#include <array>
#include <atomic>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/comm/job_rank.hpp"

using namespace llmtrain;
using testing::kCounts;
using testing::kSizes;
using testing::Rank;
using testing::run_job;
using testing::sum_of_terms;
using testing::term;
using testing::values;

TEST_CASE("all_reduce adds by pairs of neighbours, to the bit, in every size") {
  for (const int ranks : kSizes) {
    for (const std::int64_t count : kCounts) {
      CAPTURE(ranks);
      CAPTURE(count);
      std::atomic<int> wrong{0};
      const auto sent = run_job(ranks, [&](Transport& transport) {
        Rank self(transport);
        const Tensor data = self.tensor(DType::f32, count);
        const auto x = values<float>(data);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = term(self.rank(), i);
        self.group->all_reduce(data, ReduceOp::sum, "test").wait();
        for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != sum_of_terms(ranks, i);
      });
      CHECK(wrong == 0);
      const std::uint64_t all = std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
      CHECK(all ==
            2 * static_cast<std::uint64_t>(ranks - 1) * static_cast<std::uint64_t>(count) * 4);
    }
  }
}

TEST_CASE("all_reduce of other types, and of the largest and the smallest") {
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    const Tensor wide = self.tensor(DType::f64, 5);
    for (double& x : values<double>(wide)) x = 0.1 * (self.rank() + 1);
    self.group->all_reduce(wide, ReduceOp::sum, "test").wait();
    const Tensor whole = self.tensor(DType::i64, 5);
    for (auto& x : values<std::int64_t>(whole)) x = self.rank() - 1;
    self.group->all_reduce(whole, ReduceOp::min, "test").wait();
    // In FP32 257 + 1 + 1 is 259; added in bf16, 257 would stay.
    const Tensor half = self.tensor(DType::bf16, 5);
    for (bf16& x : values<bf16>(half)) x = to_bf16(self.rank() == 0 ? 256.0f : 1.5f);
    self.group->all_reduce(half, ReduceOp::sum, "test").wait();
    // As is 2048 + 0.75 + 0.75 of fp16, whose neighbours there are 2 apart.
    const Tensor fp16 = self.tensor(DType::f16, 5);
    for (f16& x : values<f16>(fp16)) x = to_f16(self.rank() == 0 ? 2048.0f : 0.75f);
    self.group->all_reduce(fp16, ReduceOp::sum, "test").wait();
    for (const f16 x : values<f16>(fp16)) {
      if (to_float(x) != 2050) throw std::runtime_error("fp16");
    }
    for (const double x : values<double>(wide)) {
      if (x != (0.1 * 1 + 0.1 * 2) + 0.1 * 3) throw std::runtime_error("fp64");
    }
    for (const auto x : values<std::int64_t>(whole)) {
      if (x != -1) throw std::runtime_error("i64");
    }
    for (const bf16 x : values<bf16>(half)) {
      if (to_float(x) != to_float(to_bf16(259.0f))) throw std::runtime_error("bf16");
    }
  });
}

TEST_CASE("reduce_scatter and all_gather are the halves of all_reduce") {
  for (const int ranks : kSizes) {
    for (const std::int64_t part : {1, 77, 90'001}) {
      CAPTURE(ranks);
      CAPTURE(part);
      std::atomic<int> wrong{0};
      const auto sent = run_job(ranks, [&](Transport& transport) {
        Rank self(transport);
        const Tensor data = self.tensor(DType::f32, part * ranks);
        const auto x = values<float>(data);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = term(self.rank(), i);
        const Tensor mine = self.tensor(DType::f32, part);
        self.group->reduce_scatter(data, mine, "test").wait();
        const Tensor all = self.tensor(DType::f32, part * ranks);
        self.group->all_gather(mine, all, "test").wait();
        const auto y = values<float>(all);
        for (std::size_t i = 0; i < y.size(); ++i) wrong += y[i] != sum_of_terms(ranks, i);
      });
      CHECK(wrong == 0);
      const std::uint64_t all = std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
      CHECK(all == 2 * static_cast<std::uint64_t>(ranks * (ranks - 1) * part) * 4);
    }
  }
}

TEST_CASE("all_to_all, broadcast, values and texts arrive where they belong") {
  run_job(4, [&](Transport& transport) {
    Rank self(transport);
    const Tensor from = self.tensor(DType::i32, 8);
    for (int i = 0; i < 8; ++i)
      values<std::int32_t>(from)[static_cast<std::size_t>(i)] = 100 * self.rank() + i;
    const Tensor to = self.tensor(DType::i32, 8);
    self.group->all_to_all(from, to, "test").wait();
    for (int i = 0; i < 8; ++i) {
      const int expected = 100 * (i / 2) + 2 * self.rank() + i % 2;
      if (values<std::int32_t>(to)[static_cast<std::size_t>(i)] != expected) {
        throw std::runtime_error("all_to_all");
      }
    }
    self.group->broadcast(from, 2, "test").wait();
    if (values<std::int32_t>(from)[3] != 203) throw std::runtime_error("broadcast");
    const auto ranks = self.group->gather_values(self.rank(), "test");
    if (ranks != std::vector<int>{0, 1, 2, 3}) throw std::runtime_error("values");
    const std::string text(static_cast<std::size_t>(self.rank()) * 3, 'x');
    if (self.group->share_text(text, 3, "test") != "xxxxxxxxx") throw std::runtime_error("text");
    if (!self.group->share_text(text, 0, "test").empty()) throw std::runtime_error("empty text");
    self.group->barrier("test");
  });
}

TEST_CASE("messages go on while collectives are done, in their order, and in both directions") {
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    const int next = (self.rank() + 1) % 3;
    const int last = (self.rank() + 2) % 3;
    std::vector<Tensor> out, in;
    std::vector<Handle> handles;
    for (int i = 0; i < 20; ++i) {
      out.push_back(self.tensor(DType::i32, 2));
      in.push_back(self.tensor(DType::i32, 2));
      values<std::int32_t>(out.back())[0] = 1000 * self.rank() + i;
      handles.push_back(self.group->recv(in.back(), last, "test"));
      if (i % 7 == 0) self.group->barrier("between");
      handles.push_back(self.group->send(out.back(), next, "test"));
    }
    for (Handle& handle : handles) handle.wait();
    for (int i = 0; i < 20; ++i) {
      if (values<std::int32_t>(in[static_cast<std::size_t>(i)])[0] != 1000 * last + i) {
        throw std::runtime_error("message");
      }
    }
  });
}

TEST_CASE("what begins later does not wait for what others have not begun") {
  std::atomic<bool> is_over{false};
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    const std::vector<int> late{0, 1}, early{0, 2};
    const int index = self.rank() == 0 ? 0 : 1;
    std::unique_ptr<Communicator> with_late, with_early;
    if (self.rank() != 2) with_late = self.world.make_group("late", late, index);
    if (self.rank() == 0) with_early = self.world.make_group("early", early, index);
    if (self.rank() == 2) {
      self.world.make_group("late", {2}, 0);  // one as elsewhere
      with_early = self.world.make_group("early", early, index);
    }
    for (Communicator* group : {with_late.get(), with_early.get()}) {
      if (group != nullptr) group->use_staging(self.staging);
    }
    const Tensor mine = self.tensor(DType::i32, 1), all = self.tensor(DType::i32, 2);
    const Tensor other = self.tensor(DType::i32, 2), sum = self.tensor(DType::i32, 1001);
    values<std::int32_t>(mine)[0] = self.rank();
    values<std::int32_t>(sum)[1000] = 1;
    if (self.rank() == 1) {
      while (!is_over) std::this_thread::yield();
      with_late->all_gather(mine, all, "late").wait();
      with_late->all_reduce(sum, ReduceOp::sum, "late").wait();
    } else if (self.rank() == 2) {
      with_early->all_gather(mine, all, "early").wait();
    } else {
      Handle waits = with_late->all_gather(mine, all, "late");
      Handle adds = with_late->all_reduce(sum, ReduceOp::sum, "late");
      with_early->all_gather(mine, other, "early").wait();
      is_over = true;
      waits.wait();
      adds.wait();
      if (values<std::int32_t>(other)[1] != 2) throw std::runtime_error("early");
      if (values<std::int32_t>(all)[1] != 1) throw std::runtime_error("late");
      if (values<std::int32_t>(sum)[1000] != 2) throw std::runtime_error("sum");
    }
  });
}

TEST_CASE("sums, parts and messages that are under way together arrive as each by itself") {
  constexpr int kRanks = 4;
  // Less than a piece, and more than both lanes hold; elements that round in any other order.
  constexpr std::array<std::int64_t, 5> kElements{1, 300'001, 77, 150'001, 5};
  std::atomic<int> wrong{0};
  run_job(kRanks, [&](Transport& transport) {
    Rank self(transport);
    const auto filled = [&](std::int64_t n) {
      const Tensor tensor = self.tensor(DType::f32, n);
      const auto x = values<float>(tensor);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = term(self.rank(), i);
      return tensor;
    };
    std::vector<Tensor> sums, parts, mine, all;
    std::vector<Handle> handles;
    for (const std::int64_t n : kElements) {
      sums.push_back(filled(n));
      handles.push_back(self.group->all_reduce(sums.back(), ReduceOp::sum, "sum"));
      mine.push_back(filled(n));
      all.push_back(self.tensor(DType::f32, kRanks * n));
      handles.push_back(self.group->all_gather(mine.back(), all.back(), "all"));
      mine.push_back(filled(kRanks * n));
      parts.push_back(self.tensor(DType::f32, n));
      handles.push_back(self.group->reduce_scatter(mine.back(), parts.back(), "part"));
    }
    for (Handle& handle : handles) handle.wait();
    for (std::size_t k = 0; k < kElements.size(); ++k) {
      const auto n = static_cast<std::size_t>(kElements[k]);
      for (std::size_t i = 0; i < n; ++i) {
        wrong += values<float>(sums[k])[i] != sum_of_terms(kRanks, i);
        const std::size_t at = static_cast<std::size_t>(self.rank()) * n + i;
        wrong += values<float>(parts[k])[i] != sum_of_terms(kRanks, at);
        for (int r = 0; r < kRanks; ++r) {
          wrong += values<float>(all[k])[static_cast<std::size_t>(r) * n + i] != term(r, i);
        }
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("a rank that does not come is named with the call that waits for it") {
  std::string collective, message;
  run_job(4, [&](Transport& transport) {
    Rank self(transport);
    self.world.configure(TimeLimit(0.2), false);
    self.group->barrier("start");
    if (self.rank() == 2) return;  // stays alive: nobody's messages fail
    if (self.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Tensor data = self.tensor(DType::f32, 1001);
    const auto begin = std::chrono::steady_clock::now();
    try {
      // Those behind it fail with it, at once: 100 of them do not wait 100 times as long.
      std::vector<Handle> handles;
      for (int i = 0; i < 100; ++i) {
        handles.push_back(self.group->all_reduce(data, ReduceOp::sum, "gradients"));
      }
      for (Handle& handle : handles) handle.wait();
    } catch (const CommError& error) {
      if (self.rank() == 0) collective = error.what();
    }
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) {
      throw std::runtime_error("waited again");
    }
    const auto last = self.world.last_collectives();
    if (last.size() != 64 || last.back().site != "gradients" || last.back().sequence != 100) {
      throw std::runtime_error("log");
    }
  });
  // Of the first ones; which, goes by who of the others came late to it.
  CAPTURE(collective);
  CHECK(collective.starts_with("no answer within 0.2 s from rank 2: #"));
  CHECK(collective.ends_with(" all_reduce on all, 4004 B, at gradients"));

  run_job(2, [&](Transport& transport) {
    Rank self(transport);
    self.world.configure(TimeLimit(0.2), false);
    self.group->barrier("start");
    if (self.rank() == 1) return;
    try {
      self.group->recv(self.tensor(DType::f32, 4), 1, "activations").wait();
    } catch (const CommError& error) {
      message = error.what();
    }
  });
  CHECK(message == "no answer within 0.2 s from rank 1: #1 recv on all, 16 B, at activations");
}

TEST_CASE("who calls something else is named where the ranks compare their calls") {
  const auto message = [](const std::function<void(Rank&)>& odd) {
    std::string text;
    run_job(3, [&](Transport& transport) {
      Rank self(transport);
      self.world.configure(kDefaultPatience, true);
      const Tensor data = self.tensor(DType::f32, 8);
      self.group->all_reduce(data, ReduceOp::sum, "same").wait();
      try {
        if (self.rank() == 1) {
          odd(self);
        } else {
          self.group->all_reduce(data, ReduceOp::sum, "loss").wait();
        }
      } catch (const CommError& error) {
        if (self.rank() == 0) text = error.what();
      }
    });
    return text;
  };
  CHECK(message([](Rank& self) { self.group->barrier("save"); }) ==
        "the ranks of all do not call the same: rank 0 #1 all_reduce on all, 32 B, at loss; rank 1 "
        "#1 barrier on all, 0 B, at save");
  CHECK(message([](Rank& self) {
          self.group->all_reduce(self.tensor(DType::f32, 9), ReduceOp::sum, "loss").wait();
        }).find("36 B, at loss") != std::string::npos);
  CHECK(message([](Rank& self) {
          self.group->all_reduce(self.tensor(DType::f32, 8), ReduceOp::sum, "norm").wait();
        }).find("at norm") != std::string::npos);
}

TEST_CASE("ranks that compare their calls may have exchanged other numbers of messages") {
  run_job(3, [&](Transport& transport) {
    Rank self(transport);
    self.world.configure(kDefaultPatience, true);
    const Tensor data = self.tensor(DType::f32, 8);
    if (self.rank() > 0) self.group->recv(data, self.rank() - 1, "activations").wait();
    if (self.rank() < 2) self.group->send(data, self.rank() + 1, "activations").wait();
    self.group->all_reduce(data, ReduceOp::sum, "loss").wait();
  });
}

TEST_CASE("groups of the same ranks in several axes do not mix what they send") {
  run_job(4, [&](Transport& transport) {
    Rank self(transport);
    const std::vector<int> row = self.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const std::vector<int> column = self.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto rows = self.world.make_group("row", row, self.rank() % 2);
    const auto columns = self.world.make_group("column", column, self.rank() / 2);
    for (Communicator* group : {rows.get(), columns.get()}) group->use_staging(self.staging);
    const Tensor a = self.tensor(DType::f32, 1001), b = self.tensor(DType::f32, 1001);
    for (float& x : values<float>(a)) x = static_cast<float>(self.rank());
    for (float& x : values<float>(b)) x = static_cast<float>(self.rank());
    Handle first = rows->all_reduce(a, ReduceOp::sum, "row");
    Handle second = columns->all_reduce(b, ReduceOp::sum, "column");
    second.wait();
    first.wait();
    if (values<float>(a)[1000] != static_cast<float>(row[0] + row[1]))
      throw std::runtime_error("row");
    if (values<float>(b)[1000] != static_cast<float>(column[0] + column[1])) {
      throw std::runtime_error("column");
    }
  });
}
