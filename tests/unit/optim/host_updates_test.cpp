// Updates that the host computes for a device: the same bits, whenever copies are carried out.
#include <utility>

#include "tests/unit/optim/late_memory.hpp"
#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;

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
