// Updates that the host computes for a device: the same bits, whenever copies are carried out.
#include <cstring>
#include <functional>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/tensor/host_memory.hpp"
#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;

/// A device whose copies beside launches are carried out when somebody waits for them, as late as
/// may be. It knows how often somebody asked for a place behind the launches.
class LateMemory final : public HostMemory {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  std::unique_ptr<CopyQueue> make_copy_queue() override { return std::make_unique<Late>(places_); }

 private:
  struct Place final : CopyQueue::Point {
    explicit Place(int of) : number(of) {}
    int number;
  };
  class Late final : public CopyQueue {
   public:
    explicit Late(int& places) : places_(&places) {}
    std::span<std::byte> pin(std::uint64_t bytes) override {
      return pinned_.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xff});
    }
    std::shared_ptr<const Point> launched() override {
      return std::make_shared<const Place>(++*places_);
    }
    void follow(const Point& point) override {
      followed_ = static_cast<const Place&>(point).number;
    }
    std::shared_ptr<const Point> queued() override { fail("updates wait for copies"); }
    void hold_launches(const Point&) override { fail("updates wait for copies"); }
    void to_host(void* pinned, const void* device, std::uint64_t bytes) override {
      add(pinned, device, bytes);
    }
    void to_device(void* device, const void* pinned, std::uint64_t bytes) override {
      add(device, pinned, bytes);
    }
    void finish() override {
      for (const auto& copy : std::exchange(copies_, {})) copy();
    }

   private:
    void add(void* to, const void* from, std::uint64_t bytes) {
      CHECK(followed_ == *places_);  // of this update
      copies_.emplace_back([=] { std::memcpy(to, from, bytes); });
    }
    int* places_;
    int followed_ = 0;
    std::vector<std::function<void()>> copies_;
    std::vector<std::vector<std::byte>> pinned_;
  };

  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
  int places_ = 0;
};

Offload on_host(bool masters, std::uint64_t buffer = kBuffer) {
  return {.place = OffloadPlace::host, .masters = masters, .buffer_bytes = buffer};
}

bool has_masters(const ParameterDTypes& dtypes) {
  return dtypes.compute != dtypes.master && dtypes.form != MasterForm::none;
}

}  // namespace

TEST_CASE("with updates on the host every optimizer has the bits that it has without") {
  for (const std::string& yaml : with_states()) {
    for (const ParameterDTypes& dtypes :
         {kFp32, kBf16, kFp16, kBf16Remainder, kBf16Stochastic, kFp64}) {
      for (const bool masters : {false, true}) {
        if (masters && !has_masters(dtypes)) continue;
        if (dtypes.compute == DType::f64 && yaml.find("bf16") != yaml.npos) continue;
        CAPTURE(yaml);
        CAPTURE(to_string(dtypes.compute));
        CAPTURE(static_cast<int>(dtypes.form));
        CAPTURE(masters);
        Run plain(yaml, dtypes, std::nullopt);
        Run offloaded(yaml, dtypes, on_host(masters, 4 * kBuffer), std::make_unique<LateMemory>());
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

TEST_CASE("lanes are as many as have room, and one is enough") {
  Run plain("name: adamw", kBf16, std::nullopt);
  for (int step = 1; step <= 3; ++step) plain.step(step);
  // Parts of 16,384 elements: gradients of 64 KiB and copies of 32.
  for (const auto& [buffer, lanes] : {std::pair{100, 1}, std::pair{200, 2}, std::pair{2000, 4}}) {
    Run offloaded("name: adamw", kBf16, on_host(true, static_cast<std::uint64_t>(buffer) << 10),
                  std::make_unique<LateMemory>());
    for (int step = 1; step <= 3; ++step) offloaded.step(step);
    check_equal(plain, offloaded);
    const HostUpdateFacts facts = offloaded.set->host_updates()->facts();
    CHECK(facts.pinned_bytes <= static_cast<std::uint64_t>(buffer) << 10);
    CHECK(facts.pinned_bytes > static_cast<std::uint64_t>(lanes) * (90 << 10));
  }
}

TEST_CASE("a plan has what updates on the host take, and nothing of it is the device's") {
  for (const std::string& yaml : with_states()) {
    CAPTURE(yaml);
    Run run(yaml, kBf16, on_host(true, 4 * kBuffer), std::make_unique<LateMemory>());
    Run planned(yaml, kBf16, on_host(true, 4 * kBuffer), true);
    CHECK(run.set->host_updates()->facts().pinned_bytes ==
          planned.set->host_updates()->facts().pinned_bytes);
    run.step(1);
    run_step(planned.rig, *planned.set, 1.0);
    const HostUpdateFacts facts = run.set->host_updates()->facts(),
                          of_plan = planned.set->host_updates()->facts();
    CHECK(facts.memory_bytes == of_plan.memory_bytes);
    CHECK(facts.pinned_bytes == of_plan.pinned_bytes);
    CHECK(facts.down_bytes == of_plan.down_bytes);
    CHECK(facts.up_bytes == of_plan.up_bytes);
    CHECK(facts.contents == "optimizer states and masters");
    std::uint64_t kept = 0;
    for (const StateTensor& state : run.set->states()) kept += state.bytes();
    CHECK(facts.memory_bytes > kept);
    MemoryLedger& ledger = run.rig.device.ledger();
    CHECK(ledger.held_bytes(Category::optimizer) <= 4 << 10);  // the decision, and of the norm
    CHECK(ledger.held_bytes(Category::master) == 0);
    CHECK(ledger.held_bytes(Category::offload) == 0);
  }
}

TEST_CASE("what travels at once must fit, and what keeps nothing is refused") {
  const auto run = [&](const std::string& yaml, const Offload& offload) {
    const Run made(yaml, kBf16, offload, std::make_unique<LateMemory>());
  };
  std::string text;
  try {
    run("name: adamw", on_host(true, 92 << 10));
  } catch (const RecipeError& error) {
    text = error.what();
  }
  CHECK(text.find("offload.buffer: has 88KiB, and the tensors of embed, which an update needs at "
                  "once, take 96KiB (raise it to 100KiB, or to 292KiB") == 0);
  CHECK_NOTHROW(run("name: adamw", on_host(true, 100 << 10)));
  CHECK_THROWS_AS(run("name: sgd", on_host(false)), RecipeError);
  CHECK_NOTHROW(run("name: sgd", on_host(true)));
}

TEST_CASE("states and masters that are written between steps are those of the host's next update") {
  Run plain("name: adamw_8bit", kBf16, std::nullopt);
  Run offloaded("name: adamw_8bit", kBf16, on_host(true), std::make_unique<LateMemory>());
  plain.step(1);
  plain.step(2);
  offloaded.step(1);
  for (std::size_t i = 0; i < plain.set->states().size(); ++i) {
    offloaded.set->states()[i].write(0, plain.state(i));
  }
  check_goes_on(plain, offloaded);
}

}  // namespace llmtrain::optim
