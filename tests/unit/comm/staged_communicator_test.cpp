// Collectives of a device's tensors against those of the host's, over threads that are the ranks of
// a job, each with a device that does nothing before somebody waits.
#include <array>
#include <atomic>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/comm/pinned_staging.hpp"
#include "lib/comm/world.hpp"
#include "tests/support/lazy_device.hpp"
#include "tests/support/thread_transport.hpp"

using namespace llmtrain;
using testing::LazyMemory;
using testing::run_job;

namespace {

using Values = std::vector<float>;

// A rank with two groups of all ranks: for its device, and for the CPU.
struct Rank {
  explicit Rank(Transport& transport) : world(transport) {
    std::vector<int> members(static_cast<std::size_t>(world.place().size));
    std::iota(members.begin(), members.end(), 0);
    on_device = world.make_group("device", members, world.place().rank,
                                 std::make_shared<PinnedStaging>(device));
    on_host = world.make_group("host", members, world.place().rank);
    staging =
        cpu.allocate({static_cast<std::int64_t>(kHostStagingBytes)}, DType::u8, Category::comm, "");
    on_host->use_staging(staging);
  }
  int rank() const { return world.place().rank; }
  int size() const { return world.place().size; }
  LazyMemory& memory() const { return static_cast<LazyMemory&>(device.backend()); }
  Tensor tensor(Device& where, std::int64_t n, float value = -1) const {
    const Tensor t = where.allocate({n}, DType::f32, Category::activations, "t");
    const Values values(static_cast<std::size_t>(n), value);
    where.copy_from_host(t, std::as_bytes(std::span(values)));
    return t;
  }
  // Launches what writes this rank's terms.
  void write(const Tensor& t) const {
    const auto kernel = [data = t.view().as<float>(), n = t.numel(), r = rank()] {
      for (std::int64_t i = 0; i < n; ++i) {
        data[i] = 1.0f / static_cast<float>(1 + (r * 7919 + static_cast<int>(i) * 31) % 1009);
      }
    };
    t.device().kind() == DeviceKind::cpu ? kernel() : memory().launch(kernel);
  }
  // What a kernel that is launched now finds there.
  Values read(const Tensor& t) const {
    Values values(static_cast<std::size_t>(t.numel()));
    t.device().copy_to_host(std::as_writable_bytes(std::span(values)), t);
    return values;
  }

  Device device{std::make_unique<LazyMemory>(), 1 << 28};
  Device cpu{make_cpu_memory(), 1 << 28};
  World world;
  std::unique_ptr<Communicator> on_device, on_host;
  Tensor staging;
};

// What a collective leaves in the tensor that it returns.
using Call = std::function<Tensor(Rank&, Device&, Communicator&)>;

// On the device and on the host, to the bit, with as many bytes sent.
void check_same(int ranks, const Call& call) {
  std::atomic<int> differ{0};
  const auto with = [&](bool on_device, bool on_host) {
    return run_job(ranks, [&](Transport& transport) {
      Rank self(transport);
      Values found, expected;
      if (on_device) found = self.read(call(self, self.device, *self.on_device));
      if (on_host) expected = self.read(call(self, self.cpu, *self.on_host));
      if (on_device && on_host) differ += found != expected;
    });
  };
  with(true, true);
  CHECK(differ == 0);
  CHECK(with(true, false) == with(false, true));
}

// More than a piece of the staging, none, and one element.
std::vector<std::int64_t> uneven(int ranks) {
  constexpr std::array<std::int64_t, 5> kParts{0, 300'001, 1, 77, 150'000};
  return {kParts.begin(), kParts.begin() + ranks};
}

}  // namespace

TEST_CASE("sums of a device's tensors are the host's, to the bit") {
  for (const int ranks : {2, 3, 5}) {
    for (const std::int64_t count : {1, 1001, 600'001}) {
      CAPTURE(ranks);
      CAPTURE(count);
      check_same(ranks, [&](Rank& self, Device& where, Communicator& group) {
        const Tensor data = self.tensor(where, count);
        self.write(data);
        group.all_reduce(data, ReduceOp::sum, "test").wait();
        return data;
      });
      check_same(ranks, [&](Rank& self, Device& where, Communicator& group) {
        const Tensor data = self.tensor(where, count * ranks), sum = self.tensor(where, count);
        self.write(data);
        group.reduce_scatter(data, sum, "test").wait();
        return sum;
      });
    }
  }
}

TEST_CASE("a device's parts of any sizes are scattered and gathered, in place and elsewhere") {
  for (const int ranks : {2, 3, 5}) {
    CAPTURE(ranks);
    const std::vector<std::int64_t> counts = uneven(ranks);
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const auto own = [&](const Rank& self, const Tensor& whole) {
      const auto rank = static_cast<std::size_t>(self.rank());
      const auto first = std::accumulate(counts.begin(), counts.begin() + self.rank(), 0LL);
      return whole.columns(first, counts[rank]);
    };
    check_same(ranks, [&](Rank& self, Device& where, Communicator& group) {
      const Tensor data = self.tensor(where, all);
      self.write(data);
      group.reduce_scatter_parts(data, own(self, data), counts, "test").wait();
      group.all_gather_parts(own(self, data), data, counts, "test").wait();
      return data;
    });
    check_same(ranks, [&](Rank& self, Device& where, Communicator& group) {
      const Tensor part = self.tensor(where, counts[static_cast<std::size_t>(self.rank())]);
      const Tensor data = self.tensor(where, all);
      self.write(part);
      group.all_gather_parts(part, data, counts, "test").wait();
      return data;
    });
  }
}

TEST_CASE("a device's parts come to those for whom they are, and what one rank has to all") {
  for (const std::int64_t unit : {1, 90'000}) {
    CAPTURE(unit);
    // Member r sends (r + m) % 3 units to member m.
    check_same(4, [&](Rank& self, Device& where, Communicator& group) {
      std::vector<std::int64_t> counts;
      for (int m = 0; m < 4; ++m) counts.push_back(unit * ((self.rank() + m) % 3));
      const Tensor from = self.tensor(where, 8 * unit), to = self.tensor(where, 8 * unit);
      self.write(from);
      group.all_to_all_parts(from, counts, to, counts, "test").wait();
      return to;
    });
    check_same(3, [&](Rank& self, Device& where, Communicator& group) {
      const Tensor data = self.tensor(where, 7 * unit);
      if (self.rank() == 1) self.write(data);
      group.broadcast(data, 1, "test").wait();
      return data;
    });
  }
}

TEST_CASE("messages of a device's tensors go on while others are sent") {
  check_same(3, [&](Rank& self, Device& where, Communicator& group) {
    const int next = (self.rank() + 1) % 3, last = (self.rank() + 2) % 3;
    const Tensor all = self.tensor(where, 20 * 1001);
    std::vector<Tensor> sent;
    std::vector<Handle> handles;
    for (std::int64_t i = 0; i < 20; ++i) {
      handles.push_back(group.recv(all.columns(i * 1001, 1001), last, "test"));
      if (i % 7 == 0) group.barrier("between");
      self.write(sent.emplace_back(self.tensor(where, 1001)));
      handles.push_back(group.send(sent.back(), next, "test"));
    }
    for (Handle& handle : handles) handle.wait();
    return all;
  });
}

TEST_CASE("what was launched before a collective reads what was there before it") {
  run_job(2, [&](Transport& transport) {
    Rank self(transport);
    const Tensor place = self.tensor(self.device, 4, 3), kept = self.tensor(self.device, 4);
    self.device.copy(place, kept);  // a reader of memory that is given to what arrives
    const Tensor mine = self.tensor(self.device, 4, 5);
    Handle arrived = self.on_device->recv(place, 1 - self.rank(), "test");
    Handle sent = self.on_device->send(mine, 1 - self.rank(), "test");
    arrived.wait();
    sent.wait();
    const Tensor sum = self.tensor(self.device, 4);
    self.device.copy(place, sum);
    if (self.read(kept) != Values(4, 3)) throw std::runtime_error("overtaken");
    if (self.read(sum) != Values(4, 5)) throw std::runtime_error("arrived");
  });
}

TEST_CASE("a collective of another device's tensors is refused") {
  run_job(2, [&](Transport& transport) {
    Rank self(transport);
    bool refused = false;
    try {
      self.on_device->all_reduce(self.tensor(self.cpu, 4), ReduceOp::sum, "test").wait();
    } catch (const InternalError&) {
      refused = true;
    }
    if (!refused) throw std::runtime_error("taken");
  });
}
