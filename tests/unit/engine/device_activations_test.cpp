// Activations in the host's memory: the same values, whenever copies are carried out, and memory as
// planned.
#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/engine/host_shelf.hpp"
#include "tests/unit/engine/activation_rig.hpp"

namespace llmtrain::engine {

namespace {

using testing::LazyMemory;
constexpr std::int64_t kOdd = 37;  // elements: no multiple of what addresses are multiples of

class Rig : public ActivationRig {
 public:
  explicit Rig(std::optional<LazyMemory::Copying> copying, std::uint64_t pinned = kPlenty)
      : ActivationRig(
            copying, [pinned](Device& of) { return std::make_unique<HostShelf>(of, pinned); },
            kOdd) {}
  DeviceActivationFacts facts() const { return activations.shelf().facts(); }
  std::uint64_t held_on_host() const { return activations.shelf().held_bytes(); }
};

DeviceActivationFacts planned(const Program& program) {
  Rig rig(std::nullopt);
  program(rig);
  return rig.facts();
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
      CHECK(rig.held_on_host() == 0);
    }
  }
}

TEST_CASE("a plan has what activations take, of the device and of its host, to the byte") {
  for (const Program& program : kPrograms) {
    const DeviceActivationFacts plan = planned(program);
    Rig meta(std::nullopt), rig(LazyMemory::Copying::late, plan.pinned_bytes);
    for (Rig* r : {&meta, &rig}) {
      program(*r);
      program(*r);
    }
    CHECK(rig.device.ledger().stop_trace() == meta.device.ledger().stop_trace());
    const DeviceActivationFacts facts = rig.facts();
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
  const std::uint64_t first = rig.facts().down_bytes;
  rig.forward(0, 1);
  const std::uint64_t both = rig.facts().down_bytes;
  rig.backward(0, 1);
  rig.backward(0, 0);
  CHECK(rig.facts().up_bytes == first);
  CHECK(both > first);
  // Not when something else was left behind it, be it nothing.
  rig.forward(1, 0);
  CHECK(rig.activations.put_away(rig.context(1), {}).empty());
  CHECK(rig.held() == 0);
  rig.backward(1, 0);
  CHECK(rig.facts().up_bytes == 2 * first);
}

TEST_CASE("the walk back has the next block's on their way when it takes the first of one") {
  Rig rig(std::nullopt);
  rig.num_blocks = 4;
  rig.forward(0);
  CHECK(rig.activations.put_away(rig.context(0), {}).empty());
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
  const std::uint64_t without = rig.facts().up_bytes;
  Tensor later = std::exchange(rig.ways(0, 1)[2], {})(ctx);
  CHECK(rig.facts().up_bytes - without == sizeof(float) * kOdd * (4 + 1 + 2));
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
    CHECK(rig.held_on_host() == 0);
    one_after_the_other(rig);
    rig.device.synchronize();
    CHECK(rig.wrong == 0);
    CHECK(rig.reads == 3 + 2 + 3 * 5 * kMicroBatches);
  }
}

}  // namespace llmtrain::engine
