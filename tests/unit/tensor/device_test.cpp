#include "lib/tensor/device.hpp"

#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain {

namespace {

// 2000 allocations and releases of random sizes, then a release of all.
std::vector<AllocationEvent> random_traffic(Device& device) {
  const PhiloxKey key = philox_key(7, "test", "arena");
  device.ledger().start_trace();
  std::vector<Tensor> live;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    if (live.size() > 20 || (!live.empty() && philox_below(key, 1, i, 3) == 0)) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(philox_below(key, 2, i, live.size())));
    } else {
      const auto n = static_cast<std::int64_t>(philox_below(key, 3, i, 10000));
      live.push_back(device.allocate({n}, DType::f32, Category::activations, "x"));
    }
  }
  live.clear();
  return device.ledger().stop_trace();
}

}  // namespace

TEST_CASE("a real arena that just suffices has the addresses of an imaginary endless one") {
  Device meta(make_meta_memory(), std::uint64_t{1} << 50);
  const auto planned = random_traffic(meta);
  Device cpu(make_cpu_memory(), meta.arena_extent_bytes());
  const auto real = random_traffic(cpu);

  CHECK(real == planned);
  CHECK(hash_of(real) == hash_of(planned));
  CHECK(cpu.arena_extent_bytes() == meta.arena_extent_bytes());
  CHECK(cpu.ledger().held_bytes() == 0);
  Device less(make_cpu_memory(), meta.arena_extent_bytes() - AddressSpace::kAlignment);
  CHECK_THROWS_AS(random_traffic(less), DoesNotFitError);
}

TEST_CASE("a host read holds what memory held when it was started") {
  Device cpu(make_cpu_memory(), 1 << 20);
  const Tensor x = cpu.allocate({2}, DType::f32, Category::optimizer, "x");
  const std::unique_ptr<HostRead> read = cpu.make_host_read(x.view().bytes());
  x.view().as<float>()[1] = 3;
  read->start(x.view().data);
  x.view().as<float>()[1] = 4;
  const std::span<const std::byte> bytes = read->wait();
  REQUIRE(bytes.size() == 2 * sizeof(float));
  CHECK(reinterpret_cast<const float*>(bytes.data())[1] == 3);
  CHECK(!cpu.runs_behind());
  CHECK(!Device(make_meta_memory(), 1 << 20).runs_behind());
}

TEST_CASE("noted allocations are repeated at their addresses, or not at all") {
  Device cpu(make_cpu_memory(), 1 << 20);
  std::vector<AllocationEvent> noted;
  cpu.ledger().start_trace();
  cpu.ledger().note_in(&noted);
  {
    const Tensor a = cpu.allocate({100}, DType::f32, Category::activations, "a");
    const Tensor b = cpu.allocate({3000}, DType::f32, Category::workspace, "b");
  }
  cpu.ledger().note_in(nullptr);
  const auto trace = cpu.ledger().stop_trace();
  CHECK(noted == trace);
  REQUIRE(noted.size() == 4);

  cpu.ledger().start_trace();
  cpu.repeat(noted);
  CHECK(cpu.ledger().stop_trace() == trace);
  CHECK(cpu.ledger().held_bytes() == 0);
  const Tensor in_the_way = cpu.allocate({1}, DType::f32, Category::params, "other");
  CHECK_THROWS_AS(cpu.repeat(noted), InternalError);
  CHECK(noted.size() == 4);
  CHECK(!cpu.backend().can_record());
  CHECK_THROWS_AS(cpu.backend().begin_recording(), InternalError);
}

TEST_CASE("a block is returned once and the space above all blocks is one") {
  AddressSpace space(1 << 20);
  const std::uint64_t a = space.take(1000).value();
  const std::uint64_t b = space.take(2000).value();
  space.give_back(a, 1000);
  CHECK_THROWS_AS(space.give_back(a, 1000), InternalError);
  space.give_back(b, 2000);
  CHECK_THROWS_AS(space.give_back(b, 2000), InternalError);
  CHECK(space.largest_free_block() == 1 << 20);
  CHECK(space.take(1 << 20) == 0);
}

TEST_CASE("live blocks never overlap and stay inside the arena") {
  Device cpu(make_cpu_memory(), 1 << 20);
  std::vector<Tensor> live;
  for (int i = 0; i < 40; ++i) {
    live.push_back(cpu.allocate({1 + i * 37}, DType::u8, Category::grads, "g"));
    if (i % 3 == 2) live.erase(live.begin() + i / 3);
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    for (std::size_t j = i + 1; j < live.size(); ++j) {
      const Storage& a = live[i].storage();
      const Storage& b = live[j].storage();
      CHECK((a.offset() + a.bytes() <= b.offset() || b.offset() + b.bytes() <= a.offset()));
    }
  }
}

TEST_CASE("an allocation beyond the arena names what is held and leaves the ledger as it was") {
  Device cpu(make_cpu_memory(), 1 << 20);
  const Tensor a = cpu.allocate({1 << 17}, DType::f32, Category::params, "weights");
  const std::uint64_t held = cpu.ledger().held_bytes();
  CHECK_THROWS_AS(cpu.allocate({1 << 18}, DType::f32, Category::grads, "g"), DoesNotFitError);
  CHECK(cpu.ledger().held_bytes() == held);
}

TEST_CASE("the peak of a phase remembers the categories at that instant") {
  Device meta(make_meta_memory(), 1 << 30);
  const Tensor weights = meta.allocate({1024}, DType::f32, Category::params, "w");
  meta.ledger().enter(Phase::step);
  { const Tensor x = meta.allocate({2048}, DType::f32, Category::activations, "x"); }
  { const Tensor y = meta.allocate({512}, DType::f32, Category::workspace, "y"); }

  const Peak& peak = meta.ledger().peak(Phase::step);
  CHECK(peak.total_bytes == 4096 + 8192);
  CHECK(peak.tag == "x");
  CHECK(peak.at_peak[static_cast<int>(Category::workspace)] == 0);
  CHECK(peak.per_category[static_cast<int>(Category::workspace)] == 2048);
}

TEST_CASE("a comparison names the first event that was not planned, or was planned and missing") {
  const auto run = [](std::span<const AllocationEvent> planned, std::int64_t n, bool last) {
    Device meta(make_meta_memory(), 1 << 30);
    meta.ledger().start_comparison(planned);
    { const Tensor x = meta.allocate({n}, DType::u8, Category::activations, "x"); }
    if (last) const Tensor y = meta.allocate({256}, DType::u8, Category::grads, "y");
    return meta.ledger().stop_comparison();
  };
  Device meta(make_meta_memory(), 1 << 30);
  meta.ledger().start_trace();
  { const Tensor x = meta.allocate({256}, DType::u8, Category::activations, "x"); }
  { const Tensor y = meta.allocate({256}, DType::u8, Category::grads, "y"); }
  const auto planned = meta.ledger().stop_trace();

  CHECK_FALSE(run(planned, 256, true));
  CHECK(to_string(run(planned, 512, true).value()) ==
        "line 1: take activations x 512 B at 0 instead of take activations x 256 B at 0");
  CHECK(to_string(run(planned, 256, false).value()) ==
        "line 3: the end instead of take grads y 256 B at 0");
  CHECK(to_string(run(std::span(planned).first(2), 256, true).value()) ==
        "line 3: take grads y 256 B at 0 instead of the end");
}

TEST_CASE("column and row views address the parent's memory") {
  Device cpu(make_cpu_memory(), 1 << 20);
  const Tensor x = cpu.allocate({4, 6}, DType::f32, Category::activations, "x");
  for (int i = 0; i < 24; ++i) x.view().as<float>()[i] = static_cast<float>(i);
  const Tensor right = x.columns(2, 3);
  CHECK_FALSE(right.view().contiguous());
  CHECK(*right.view().row<float>(3) == 20.0f);
  CHECK(*right.row_range(1, 2).view().row<float>(1) == 14.0f);
  CHECK(x.reshape({2, 12}).view().row_stride == 12);
  CHECK_THROWS_AS(right.reshape({2, 6}), InternalError);
}

}  // namespace llmtrain
