#include "lib/comm/communicator.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/comm/collective_log.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

namespace {
struct Counter final : CollectiveRecorder {
  std::uint64_t bytes = 0, calls = 0;
  std::vector<int> members;
  std::vector<std::uint64_t> awaited_calls;
  std::uint64_t started(const CollectiveRecord& record, std::span<const int> of) override {
    bytes += record.bytes;
    members.assign(of.begin(), of.end());
    return calls++;
  }
  void awaited(std::uint64_t number) override { awaited_calls.push_back(number); }
};
}  // namespace

TEST_CASE("self: gathers and scatters copy, reductions change nothing") {
  Device cpu(make_cpu_memory(), 1 << 20);
  const Tensor a = cpu.allocate({3}, DType::f32, Category::comm, "a");
  const Tensor b = cpu.allocate({3}, DType::f32, Category::comm, "b");
  for (int i = 0; i < 3; ++i) a.view().as<float>()[i] = static_cast<float>(i + 1);
  const auto self = make_self_communicator("dp");

  self->all_reduce(a, ReduceOp::sum, "test").wait();
  self->all_gather(a, b, "test").wait();

  CHECK(a.view().as<float>()[2] == 3.0f);
  CHECK(b.view().as<float>()[2] == 3.0f);
  CHECK_THROWS_AS(self->send(a, 0, "test"), InternalError);
}

TEST_CASE("meta: every call is recorded with its bytes and sizes are checked") {
  Device meta(make_meta_memory(), 1 << 20);
  Counter counter;
  const auto group = make_meta_communicator("dp", {8, 10, 12, 14}, 1, &counter);
  const Tensor part = meta.allocate({8}, DType::bf16, Category::comm, "part");
  const Tensor whole = meta.allocate({32}, DType::bf16, Category::comm, "whole");

  Handle gather = group->all_gather(part, whole, "zero gather");
  group->reduce_scatter(whole, part, "zero reduce").wait();
  gather.wait();

  CHECK(counter.calls == 2);
  CHECK(counter.awaited_calls == std::vector<std::uint64_t>{1, 0});
  CHECK(counter.members == std::vector{8, 10, 12, 14});
  CHECK(counter.bytes == 128);
  CHECK_THROWS_AS(group->all_gather(whole, part, "wrong way"), InternalError);
}

TEST_CASE("the log keeps the last 64 calls in order") {
  CollectiveLog log;
  for (std::uint64_t i = 0; i < 10; ++i) log.note({.sequence = i});
  CHECK(log.last().size() == 10);
  for (std::uint64_t i = 10; i < 100; ++i) log.note({.sequence = i});
  const auto last = log.last();
  REQUIRE(last.size() == 64);
  CHECK(last.front().sequence == 36);
  CHECK(last.back().sequence == 99);
}

}  // namespace llmtrain
