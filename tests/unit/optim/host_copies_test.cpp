// Compute copies in pinned memory of a device's host: the same bits, and no copy that is too early
// or too late.
#include "lib/optim/host_copies.hpp"

#include "tests/support/lazy_device.hpp"
#include "tests/unit/optim/late_memory.hpp"
#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;
using testing::LazyMemory;

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
void check_order(LazyMemory::Copying copying) {
  auto made = std::make_unique<LazyMemory>(copying);
  LazyMemory& memory = *made;
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
  check_order(LazyMemory::Copying::late);
  check_order(LazyMemory::Copying::early);
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
