// Activations in the host's memory: the same values, whenever copies are carried out, and memory as
// planned.
#include "lib/engine/host_activations.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/lazy_device.hpp"

namespace llmtrain::engine {

namespace {

using testing::LazyMemory;
using WayBack = std::function<Tensor(const OpCtx&)>;

constexpr std::uint64_t kPlenty = 1 << 20;
constexpr int kMicroBatches = 4;
constexpr std::int64_t kOdd = 37;  // elements: no multiple of what addresses are multiples of

/// Blocks that save three tensors each, the last of them for weight parts alone, on a device that
/// does nothing before somebody waits; on meta without values.
class Rig {
 public:
  explicit Rig(std::optional<LazyMemory::Copying> copying, std::uint64_t pinned = kPlenty)
      : device(
            copying ? std::unique_ptr<MemoryBackend>(new LazyMemory(*copying)) : make_meta_memory(),
            kPlenty),
        host(device, names, pinned) {
    device.ledger().start_trace();
  }

  /// A kernel that writes.
  void write(const Tensor& t, float value) {
    launch([t = t.view(), value] { std::ranges::fill(values_of(t), value); });
  }
  /// One that reads.
  void read(const Tensor& t, float expected) {
    launch([this, t = t.view(), expected] {
      ++reads;
      wrong += std::ranges::count(values_of(t), expected) != t.numel();
    });
  }
  /// One that takes memory for itself.
  void work(std::int64_t elements) { write(tensor(elements, "scratch"), -1); }

  void forward(int micro_batch, int block) {
    std::vector<Leaving> saved;
    for (int i = 0; i < 3; ++i) {
      saved.push_back({.tensor = tensor(kOdd * (1 + i + block % 2), "saved"),
                       .first = i == 2 ? Part::weight : Part::input});
      write(saved.back().tensor, value(micro_batch, block, i));
    }
    work(kOdd * 2);
    ways(micro_batch, block) = host.put_away(context(micro_batch), std::move(saved));
    work(kOdd * 5);
  }
  void backward(int micro_batch, int block, int end = 0, WeightGrads when = WeightGrads::now) {
    for (int i = 2; i >= end; --i) {
      if (ways(micro_batch, block)[static_cast<std::size_t>(i)] == nullptr) continue;
      OpCtx ctx = context(micro_batch);
      ctx.weight_grads = when;
      const Tensor t =
          std::exchange(ways(micro_batch, block)[static_cast<std::size_t>(i)], {})(ctx);
      read(t, value(micro_batch, block, i));
      work(kOdd * 3);
    }
    if (end == 0) ways(micro_batch, block).clear();
  }
  void forward(int micro_batch) {
    for (int b = 0; b < num_blocks; ++b) forward(micro_batch, b);
    work(kOdd * 9);  // a loss
  }
  void backward(int micro_batch) {
    for (int b = num_blocks - 1; b >= 0; --b) backward(micro_batch, b);
  }

  std::vector<WayBack>& ways(int micro_batch, int block) {
    return ways_[static_cast<std::size_t>(micro_batch)][static_cast<std::size_t>(block)];
  }
  OpCtx context(int micro_batch) {
    OpCtx ctx;
    ctx.kernel.device = &device;
    ctx.tape = &tapes_[static_cast<std::size_t>(micro_batch)];
    return ctx;
  }
  std::uint64_t held() const { return device.ledger().held_bytes(); }

  const std::vector<std::string> names{"linear"};
  int num_blocks = 5;
  std::int64_t reads = 0, wrong = 0;
  Device device;
  HostActivations host;

 private:
  static std::span<float> values_of(const View& t) {
    return {t.as<float>(), static_cast<std::size_t>(t.numel())};
  }
  static float value(int micro_batch, int block, int i) {
    return static_cast<float>(1 + micro_batch * 100 + block * 10 + i);
  }
  Tensor tensor(std::int64_t elements, std::string_view tag) {
    return device.allocate({elements}, DType::f32, Category::activations, tag);
  }
  void launch(std::function<void()> kernel) {
    if (!device.is_meta()) static_cast<LazyMemory&>(device.backend()).launch(std::move(kernel));
  }

  std::array<Tape, kMicroBatches> tapes_;
  std::array<std::array<std::vector<WayBack>, 16>, kMicroBatches> ways_;
};

using Program = std::function<void(Rig&)>;

void one_after_the_other(Rig& rig) {
  for (int m = 0; m < kMicroBatches; ++m) {
    rig.forward(m);
    rig.backward(m);
  }
}

void all_forth_then_back(Rig& rig) {
  for (int m = 0; m < kMicroBatches; ++m) rig.forward(m);
  for (int m = 0; m < kMicroBatches; ++m) rig.backward(m);
}

void in_turn(Rig& rig) {
  rig.forward(0);
  for (int m = 1; m < kMicroBatches; ++m) {
    rig.forward(m);
    rig.backward(m - 1);
  }
  rig.backward(kMicroBatches - 1);
}

// Weight parts of a micro-batch behind the next one's forward.
void weight_parts_later(Rig& rig) {
  const auto input_parts = [&](int m) {
    for (int b = rig.num_blocks - 1; b >= 0; --b) {
      auto weight_part = std::exchange(rig.ways(m, b)[2], {});
      rig.backward(m, b, 0, WeightGrads::deferred);
      rig.ways(m, b).resize(3);
      rig.ways(m, b)[2] = std::move(weight_part);
    }
  };
  rig.forward(0);
  for (int m = 0; m < kMicroBatches; ++m) {
    input_parts(m);
    if (m + 1 < kMicroBatches) rig.forward(m + 1);
    rig.backward(m);
  }
}

const std::vector<Program> kPrograms{one_after_the_other, all_forth_then_back, in_turn,
                                     weight_parts_later};

HostActivationFacts planned(const Program& program) {
  Rig rig(std::nullopt);
  program(rig);
  return rig.host.facts();
}

}  // namespace

TEST_CASE("activations come back from the host as they went, and the host waits for nobody") {
  for (const Program& program : kPrograms) {
    for (const auto copying : {LazyMemory::Copying::late, LazyMemory::Copying::early}) {
      Rig rig(copying);
      for (int step = 0; step < 3; ++step) program(rig);
      CHECK(rig.reads == 0);
      rig.device.synchronize();
      CHECK(rig.reads == 3 * 3 * 5 * kMicroBatches);
      CHECK(rig.wrong == 0);
      CHECK(rig.held() == 0);
      CHECK(rig.host.held_bytes() == 0);
    }
  }
}

TEST_CASE("a plan has what activations take, of the device and of its host, to the byte") {
  for (const Program& program : kPrograms) {
    const HostActivationFacts plan = planned(program);
    Rig meta(std::nullopt), rig(LazyMemory::Copying::late, plan.pinned_bytes);
    for (Rig* r : {&meta, &rig}) {
      program(*r);
      program(*r);
    }
    CHECK(rig.device.ledger().stop_trace() == meta.device.ledger().stop_trace());
    const HostActivationFacts facts = rig.host.facts();
    CHECK(facts.pinned_bytes == plan.pinned_bytes);
    CHECK(facts.down_bytes == 2 * plan.down_bytes);
    CHECK(facts.up_bytes == 2 * plan.up_bytes);
    Rig narrow(LazyMemory::Copying::late, plan.pinned_bytes - AddressSpace::kAlignment);
    CHECK_THROWS_AS(program(narrow), DoesNotFitError);
  }
}

TEST_CASE("two blocks' activations are on the device at a time, however many there are") {
  std::vector<std::uint64_t> peaks;
  for (const int blocks : {4, 8, 16}) {
    Rig rig(std::nullopt);
    rig.num_blocks = blocks;
    one_after_the_other(rig);
    peaks.push_back(rig.device.ledger().peak(Phase::init).total_bytes);
  }
  CHECK(peaks[1] == peaks[0]);
  CHECK(peaks[2] == peaks[0]);
}

TEST_CASE("what was put away last is found where it was") {
  Rig rig(std::nullopt);
  rig.forward(0, 0);
  const std::uint64_t first = rig.host.facts().down_bytes;
  rig.forward(0, 1);
  const std::uint64_t both = rig.host.facts().down_bytes;
  rig.backward(0, 1);
  rig.backward(0, 0);
  CHECK(rig.host.facts().up_bytes == first);
  CHECK(both > first);
  // Not when something else was left behind it, be it nothing.
  rig.forward(1, 0);
  CHECK(rig.host.put_away(rig.context(1), {}).empty());
  CHECK(rig.held() == 0);
  rig.backward(1, 0);
  CHECK(rig.host.facts().up_bytes == 2 * first);
}

TEST_CASE("the walk back has the next block's on their way when it takes the first of one") {
  Rig rig(std::nullopt);
  rig.num_blocks = 4;
  rig.forward(0);
  CHECK(rig.host.put_away(rig.context(0), {}).empty());
  CHECK(rig.held() == 0);
  const std::uint64_t block_of[] = {3 * 512, 3 * 512};
  OpCtx ctx = rig.context(0);
  Tensor first = std::exchange(rig.ways(0, 3)[0], {})(ctx);
  CHECK(rig.held() > block_of[0]);
  const std::uint64_t both = rig.held();
  Tensor second = std::exchange(rig.ways(0, 3)[1], {})(ctx);
  CHECK(rig.held() == both);
  // Of deferred weight parts nothing comes before they ask.
  ctx.weight_grads = WeightGrads::deferred;
  Tensor next = std::exchange(rig.ways(0, 2)[0], {})(ctx);
  const std::uint64_t without = rig.host.facts().up_bytes;
  Tensor later = std::exchange(rig.ways(0, 1)[2], {})(ctx);
  CHECK(rig.host.facts().up_bytes - without == sizeof(float) * kOdd * (4 + 1 + 2));
}

TEST_CASE("what nobody takes is gone from both memories, and no copy writes what comes after it") {
  for (const auto copying : {LazyMemory::Copying::late, LazyMemory::Copying::early}) {
    Rig rig(copying);
    rig.forward(0);
    rig.forward(1);
    rig.backward(0, 4);
    rig.backward(0, 3, 1);
    for (int m = 0; m < 2; ++m) {
      for (int b = 0; b < rig.num_blocks; ++b) rig.ways(m, b).clear();
    }
    CHECK(rig.held() == 0);
    CHECK(rig.host.held_bytes() == 0);
    one_after_the_other(rig);
    rig.device.synchronize();
    CHECK(rig.wrong == 0);
    CHECK(rig.reads == 3 + 2 + 3 * 5 * kMicroBatches);
  }
}

}  // namespace llmtrain::engine
