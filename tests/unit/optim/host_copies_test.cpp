// Compute copies in pinned memory of a device's host: the same bits, and no copy that is too early
// or too late.
#include "lib/optim/host_copies.hpp"

#include <algorithm>
#include <deque>

#include "tests/support/lazy_device.hpp"
#include "tests/unit/optim/late_memory.hpp"
#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;

/// A device whose launches nobody does before somebody waits for them; copies beside them are
/// carried out as early as may be.
class EarlyMemory final : public HostMemory {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  std::unique_ptr<CopyQueue> make_copy_queue() override { return std::make_unique<Early>(*this); }
  void synchronize() override { do_until(launched_); }
  void launch(std::function<void()> work) {
    launches_.push_back(std::move(work));
    ++launched_;
  }

 private:
  struct Place final : CopyQueue::Point {
    explicit Place(std::int64_t of) : number(of) {}
    std::int64_t number;
  };
  class Early final : public CopyQueue {
   public:
    explicit Early(EarlyMemory& memory) : memory_(&memory) {}
    std::span<std::byte> pin(std::uint64_t bytes) override {
      return pinned_.emplace_back(static_cast<std::size_t>(bytes));
    }
    std::shared_ptr<const Point> launched() override {
      return std::make_shared<const Place>(memory_->launched_);
    }
    void follow(const Point& point) override {
      memory_->do_until(static_cast<const Place&>(point).number);
    }
    std::shared_ptr<const Point> queued() override { return std::make_shared<const Point>(); }
    void hold_launches(const Point&) override {}
    void to_host(void* to, const void* from, std::uint64_t bytes) override {
      std::memcpy(to, from, bytes);
    }
    void to_device(void* to, const void* from, std::uint64_t bytes) override {
      std::memcpy(to, from, bytes);
    }
    void finish() override {}

   private:
    EarlyMemory* memory_;
    std::vector<std::vector<std::byte>> pinned_;
  };
  void do_until(std::int64_t number) {
    for (; done_ < number; ++done_, launches_.pop_front()) launches_.front()();
  }

  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
  std::deque<std::function<void()>> launches_;
  std::int64_t launched_ = 0, done_ = 0;
};

Offload on_host(bool masters, std::uint64_t buffer = 4 * kBuffer) {
  return {
      .place = OffloadPlace::host, .masters = masters, .parameters = true, .buffer_bytes = buffer};
}

std::vector<std::byte> bytes_at(const View& view) {
  const auto* begin = view.as<const std::byte>();
  return {begin, begin + view.bytes()};
}

/// What launches see of memory into which a copy comes: before it was asked for, and when it has
/// arrived.
template <class Memory>
void check_order() {
  auto made = std::make_unique<Memory>();
  Memory& memory = *made;
  const Rig rig(Run::kept(kBf16, on_host(true)), offloaded_model(), std::move(made));
  std::vector<OptimizedParameter> parameters;
  for (const auto& p : rig.store.all()) parameters.push_back({.parameter = p.get()});
  HostCopies copies(*rig.ctx.device, parameters);
  const Parameter& p = *rig.store.all().front();
  const View kept = copies.of(p).view();
  std::memset(kept.data, 0x3f, kept.bytes());
  const std::vector<std::byte> values = bytes_at(kept);

  const Tensor to =
      rig.ctx.device->allocate(p.own_shape(), p.compute_dtype(), Category::params, "to");
  std::memset(to.view().data, 0x11, to.view().bytes());
  const std::vector<std::byte> before = bytes_at(to);
  std::vector<std::byte> seen_before, seen;
  memory.launch([&] { seen_before = bytes_at(to); });
  const auto coming = copies.bring({{&p, {to.view().as<std::byte>(), to.view().bytes()}}});
  coming->arrive();
  memory.launch([&] { seen = bytes_at(to); });
  memory.synchronize();
  CHECK(seen_before == before);
  CHECK(seen == values);
  CHECK(copies.brought_bytes() == values.size());
}

}  // namespace

TEST_CASE(
    "with its parameters on the host, too, every optimizer has the bits that it has without") {
  std::vector<std::string> all = with_states();
  all.emplace_back("name: sgd\nlr: 0.01\n");
  for (const std::string& yaml : all) {
    for (const ParameterDTypes& dtypes : {kFp32, kBf16, kFp16, kBf16Remainder, kBf16Stochastic}) {
      for (const bool masters : {false, true}) {
        if (masters && (dtypes.compute == DType::f32 || dtypes.form == MasterForm::none)) continue;
        CAPTURE(yaml);
        CAPTURE(to_string(dtypes.compute));
        CAPTURE(static_cast<int>(dtypes.form));
        CAPTURE(masters);
        Run plain(yaml, dtypes, std::nullopt);
        Run offloaded(yaml, dtypes, on_host(masters), std::make_unique<LateMemory>());
        CHECK(offloaded.rig.device.ledger().held_bytes(Category::params) == 0);
        check_equal(plain, offloaded);
        for (int step = 1; step <= 4; ++step) {
          plain.step(step);
          offloaded.step(step);
          if (step >= 3) check_equal(plain, offloaded);  // the third does not apply
        }
      }
    }
  }
}

TEST_CASE(
    "copies come behind launches that work in their memory, and before those that read them") {
  check_order<testing::LazyMemory>();
  check_order<EarlyMemory>();
}

TEST_CASE("a rank that owns nothing has no copies to bring, and waits for none") {
  Device device(std::make_unique<LateMemory>(), 1 << 20);
  HostCopies copies(device, {});
  copies.bring({})->arrive();
  CHECK(copies.pinned_bytes() == 0);
  CHECK(copies.brought_bytes() == 0);
}

TEST_CASE("an update and values that are written leave alone what comes up from before") {
  for (const bool updates : {true, false}) {
    Run run("name: adamw\nlr: 0.01\n", kBf16, on_host(true), std::make_unique<LateMemory>());
    const Parameter& p = *run.rig.store.all().front();
    const std::vector<std::byte> before = run.copy(0);
    const Tensor to =
        run.rig.device.allocate(p.own_shape(), p.compute_dtype(), Category::params, "to");
    const auto coming = run.set->host_updates()->bring_copies(
        {{&p, {to.view().as<std::byte>(), to.view().bytes()}}});
    if (updates) {
      run.step(1);
    } else {
      run.rig.store.write(p, std::vector<std::byte>(run.rig.store.read(p).size()));
    }
    coming->arrive();
    CHECK(bytes_at(to) == before);
    CHECK(run.copy(0) != before);
  }
}

TEST_CASE("a plan knows the copies on the host, and an update has nothing to send") {
  for (const bool masters : {true, false}) {
    Run run("name: adamw", kBf16, on_host(masters), std::make_unique<LateMemory>());
    Run planned("name: adamw", kBf16, on_host(masters), true);
    run.step(1);
    run_step(planned.rig, *planned.set, 1.0);
    const HostUpdateFacts facts = run.set->host_updates()->facts(),
                          of_plan = planned.set->host_updates()->facts();
    CHECK(facts.memory_bytes == of_plan.memory_bytes);
    CHECK(facts.pinned_bytes == of_plan.pinned_bytes);
    CHECK(facts.copies_bytes == of_plan.copies_bytes);
    CHECK(facts.down_bytes == of_plan.down_bytes);
    CHECK(facts.up_bytes == of_plan.up_bytes);
    std::uint64_t elements = 0;
    for (const auto& p : run.rig.store.all()) {
      elements += static_cast<std::uint64_t>(p->box().shape.numel());
    }
    CHECK(facts.copies_bytes >= 2 * elements);
    CHECK(facts.copies_bytes < 2 * elements + (8 << 10));
    CHECK(facts.down_bytes == (masters ? 4 : 8) * elements);
    CHECK(facts.up_bytes == (masters ? 0 : 4) * elements);
    CHECK(facts.contents == (masters ? "optimizer states, masters and parameters"
                                     : "optimizer states and parameters"));
  }
}

}  // namespace llmtrain::optim
