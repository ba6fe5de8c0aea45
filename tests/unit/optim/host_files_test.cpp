// Updates that the host computes for a device, of what is in a file of the host: the same bits, and
// no more memory than is planned.
#include <algorithm>

#include "tests/support/lazy_device.hpp"
#include "tests/unit/optim/late_memory.hpp"
#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;
using testing::LazyMemory;

Offload in_file(const test::TempDir& directory, bool masters, bool parameters,
                std::uint64_t buffer = 6 * kBuffer) {
  return {.place = OffloadPlace::host_file,
          .masters = masters,
          .parameters = parameters,
          .buffer_bytes = buffer,
          .directory = directory.path()};
}

bool has_masters(const ParameterDTypes& dtypes) {
  return dtypes.compute != dtypes.master && dtypes.form != MasterForm::none;
}

std::vector<std::byte> bytes_at(const View& view) {
  const auto* begin = view.as<const std::byte>();
  return {begin, begin + view.bytes()};
}

std::span<std::byte> span_of(const Tensor& tensor) {
  return {tensor.view().as<std::byte>(), tensor.view().bytes()};
}

void check_same(const std::string& yaml, const ParameterDTypes& dtypes, bool masters,
                bool parameters) {
  CAPTURE(yaml);
  CAPTURE(to_string(dtypes.compute));
  CAPTURE(static_cast<int>(dtypes.form));
  CAPTURE(masters);
  CAPTURE(parameters);
  const test::TempDir directory;
  Run plain(yaml, dtypes, std::nullopt);
  Run offloaded(yaml, dtypes, in_file(directory, masters, parameters),
                std::make_unique<LateMemory>());
  const MemoryLedger& ledger = offloaded.rig.device.ledger();
  CHECK((ledger.held_bytes(Category::params) == 0) == parameters);
  CHECK(ledger.held_bytes(Category::offload) == 0);
  check_equal(plain, offloaded);
  for (int step = 1; step <= 4; ++step) {
    plain.step(step);
    offloaded.step(step);
    if (step >= 3) check_equal(plain, offloaded);  // the third does not apply
  }
}

std::vector<std::string> all_optimizers() {
  std::vector<std::string> all = with_states();
  all.emplace_back("name: sgd\nlr: 0.01\n");
  return all;
}

/// What launches see of memory into which a copy comes: before it was asked for, and when it has
/// arrived.
void check_order(LazyMemory::Copying copying, std::uint64_t buffer) {
  const test::TempDir directory;
  auto made = std::make_unique<LazyMemory>(copying);
  LazyMemory& memory = *made;
  // Lanes of 64 KiB, through which the table's 120 KB come.
  const Run run("name: sgd", kBf16, in_file(directory, true, true, buffer), std::move(made));
  const Parameter& p = *run.rig.store.all().front();
  const std::vector<std::byte> values = run.copy(0);
  const Tensor to =
      run.rig.ctx.device->allocate(p.own_shape(), p.compute_dtype(), Category::params, "to");
  memory.synchronize();  // what was there before
  std::memset(to.view().data, 0x11, to.view().bytes());
  const std::vector<std::byte> before = bytes_at(to);
  std::vector<std::byte> seen_before, seen;
  memory.launch([&] { seen_before = bytes_at(to); });
  const auto coming = run.set->elsewhere()->bring_copies({{&p, span_of(to)}});
  coming->arrive();
  memory.launch([&] { seen = bytes_at(to); });
  memory.synchronize();
  CHECK(seen_before == before);
  CHECK(seen == values);
  CHECK(run.set->host_updates()->copy_bytes_brought() == values.size());
  CHECK(run.set->offloaded()->copy_bytes_read() >= values.size());
}

}  // namespace

TEST_CASE(
    "with its states in a file of the host every optimizer has the bits that it has without") {
  for (const std::string& yaml : all_optimizers()) {
    for (const ParameterDTypes& dtypes :
         {kFp32, kBf16, kFp16, kBf16Remainder, kBf16Stochastic, kFp64}) {
      for (const bool masters : {false, true}) {
        if (masters && !has_masters(dtypes)) continue;
        if (!masters && yaml.find("sgd") != yaml.npos) continue;
        if (dtypes.compute == DType::f64 && yaml.find("bf16") != yaml.npos) continue;
        check_same(yaml, dtypes, masters, false);
      }
    }
  }
}

TEST_CASE("with its parameters there, too, every optimizer has its bits, and its device none") {
  for (const std::string& yaml : all_optimizers()) {
    for (const ParameterDTypes& dtypes : {kFp32, kBf16, kFp16, kBf16Remainder, kBf16Stochastic}) {
      for (const bool masters : {false, true}) {
        if (!masters || has_masters(dtypes)) check_same(yaml, dtypes, masters, true);
      }
    }
  }
}

TEST_CASE("one buffer bounds the pool of the file, and what travels another time") {
  // Parts of 16,384 elements: of AdamW's states and masters 192 KiB, of gradients and copies 96; of
  // SGD's masters alone 64.
  struct Kind {
    const char* yaml;
    std::uint64_t buffer;
  };
  for (const Kind& kind : {Kind{"name: adamw", 200 << 10},
                           {"name: adamw", 600 << 10},
                           {"name: adamw", 4 << 20},
                           {"name: sgd\nlr: 0.01", 100 << 10},
                           {"name: sgd\nlr: 0.01", 2 << 20},
                           {"name: lion_8bit\nlr: 0.01", 400 << 10}}) {
    const std::string yaml = kind.yaml;
    const std::uint64_t buffer = kind.buffer;
    CAPTURE(yaml);
    CAPTURE(buffer);
    const test::TempDir directory;
    Run plain(yaml, kBf16, std::nullopt);
    Run offloaded(yaml, kBf16, in_file(directory, true, false, buffer),
                  std::make_unique<LateMemory>());
    for (int step = 1; step <= 3; ++step) {
      plain.step(step);
      offloaded.step(step);
    }
    check_equal(plain, offloaded);
    const HostUpdateFacts facts = offloaded.set->host_updates()->facts();
    CHECK(facts.pinned_bytes <= buffer);
    CHECK(facts.pinned_bytes > std::min<std::uint64_t>(buffer, 500 << 10) / 3);
    const OffloadedStates& file = *offloaded.set->offloaded();
    CHECK(file.pool_bytes() <= buffer);
    for (const ChunkLayout::Chunk& chunk : file.layout().chunks) {
      CHECK(chunk.place.bytes <= std::max<std::uint64_t>(buffer / 8, 192 << 10));
    }
    CHECK(file.layout().lane_bytes <= std::max<std::uint64_t>(buffer / 8, 96 << 10));
  }
}

TEST_CASE("a plan has what the host's file, its pool and its lanes take") {
  for (const std::string& yaml : all_optimizers()) {
    CAPTURE(yaml);
    for (const bool parameters : {false, true}) {
      CAPTURE(parameters);
      const test::TempDir directory;
      const Offload offload = in_file(directory, true, parameters);
      Run run(yaml, kBf16, offload, std::make_unique<LateMemory>());
      Run planned(yaml, kBf16, offload, true);
      CHECK(planned.set->host_updates()->facts().pinned_bytes ==
            run.set->host_updates()->facts().pinned_bytes);
      run.step(1);
      run_step(planned.rig, *planned.set, 1.0);
      const HostUpdateFacts facts = run.set->host_updates()->facts(),
                            of_plan = planned.set->host_updates()->facts();
      CHECK(facts.memory_bytes == of_plan.memory_bytes);
      CHECK(facts.pinned_bytes == of_plan.pinned_bytes);
      CHECK(facts.down_bytes == of_plan.down_bytes);
      CHECK(facts.up_bytes == of_plan.up_bytes);
      CHECK(facts.contents.empty());
      CHECK(facts.copies_bytes == 0);
      CHECK(facts.brings_copies == parameters);
      const OffloadedStates &file = *run.set->offloaded(), &of = *planned.set->offloaded();
      CHECK(file.file_bytes() == of.file_bytes());
      CHECK(file.pool_bytes() == of.pool_bytes());
      CHECK(file.contents() == of.contents());
      CHECK(file.contents().find("masters") != std::string::npos);
      CHECK(facts.memory_bytes >= file.pool_bytes());
      if (yaml.starts_with("name: adamw\n")) {  // with the tables of its launches
        CHECK(facts.memory_bytes < file.pool_bytes() + (256 << 10));
      }
      std::uint64_t kept = 0, elements = 0;
      for (const StateTensor& state : run.set->states()) kept += state.bytes();
      for (const auto& p : run.rig.store.all()) {
        elements += static_cast<std::uint64_t>(p->box().shape.numel());
      }
      CHECK(file.file_bytes() >= kept + (parameters ? 6 : 4) * elements);
      CHECK(facts.down_bytes == 4 * elements);
      CHECK(facts.up_bytes == (parameters ? 0 : 2) * elements);
      const MemoryLedger& ledger = run.rig.device.ledger();
      CHECK(ledger.held_bytes(Category::optimizer) <= 4 << 10);  // the decision, and of the norm
      CHECK(ledger.held_bytes(Category::master) == 0);
    }
  }
}

TEST_CASE("a plan counts what comes up from a file as a run does") {
  const test::TempDir directory;
  const Offload offload = in_file(directory, true, true);
  const Run run("name: adamw", kBf16, offload, std::make_unique<LateMemory>());
  const Run planned("name: adamw", kBf16, offload, true);
  for (const Run* of : {&run, &planned}) {
    std::vector<ValuesElsewhere::CopyRead> reads;
    std::vector<Tensor> to;
    for (const auto& p : of->rig.store.all()) {
      to.push_back(
          of->rig.ctx.device->allocate(p->own_shape(), p->compute_dtype(), Category::params, "to"));
      reads.push_back({p.get(), span_of(to.back())});
    }
    of->set->elsewhere()->bring_copies(reads)->arrive();
    of->set->elsewhere()->bring_copies({})->arrive();
  }
  CHECK(run.set->host_updates()->copy_bytes_brought() > 2 * 60200);
  CHECK(run.set->host_updates()->copy_bytes_brought() ==
        planned.set->host_updates()->copy_bytes_brought());
  CHECK(run.set->offloaded()->copy_bytes_read() == planned.set->offloaded()->copy_bytes_read());
}

TEST_CASE("what does not fit into the pool or a lane is refused with the size that suffices") {
  const test::TempDir directory;
  const auto problem = [&](const std::string& yaml, std::uint64_t buffer) -> std::string {
    try {
      const Run made(yaml, kBf16, in_file(directory, true, false, buffer),
                     std::make_unique<LateMemory>());
    } catch (const RecipeError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(problem("name: adamw", 192 << 10)
            .find("offload.buffer: has 188KiB, and the tensors of embed, which an update needs at "
                  "once, take 192KiB (raise it to 196KiB") == 0);
  CHECK(problem("name: adamw", 196 << 10).empty());
  // Of SGD gradients and copies are more than masters.
  CHECK(problem("name: sgd", 92 << 10).find("take 96KiB (raise it to 100KiB") != std::string::npos);
  CHECK(problem("name: sgd", 100 << 10).empty());
  CHECK_THROWS_AS(
      Run("name: sgd", kBf16, in_file(directory, false, false), std::make_unique<LateMemory>()),
      RecipeError);
}

TEST_CASE("what is written into the host's file between steps is what its next update finds") {
  for (const bool parameters : {false, true}) {
    const test::TempDir directory;
    Run plain("name: adamw_8bit", kBf16, std::nullopt);
    Run offloaded("name: adamw_8bit", kBf16, in_file(directory, true, parameters),
                  std::make_unique<LateMemory>());
    plain.step(1);
    plain.step(2);
    offloaded.step(1);  // after which states are read ahead
    for (std::size_t i = 0; i < plain.set->states().size(); ++i) {
      offloaded.set->states()[i].write(0, plain.state(i));
    }
    check_goes_on(plain, offloaded);
  }
}

TEST_CASE("what comes from a file comes behind launches in its memory, before those that read it") {
  for (const std::uint64_t buffer : {100 << 10, 200 << 10}) {  // one lane, and three
    check_order(LazyMemory::Copying::late, buffer);
    check_order(LazyMemory::Copying::early, buffer);
  }
}

TEST_CASE(
    "an update leaves alone what has come up from before, and the next one brings what is new") {
  const test::TempDir directory;
  Run run("name: adamw\nlr: 0.01\n", kBf16, in_file(directory, true, true),
          std::make_unique<LateMemory>());
  const Parameter& p = *run.rig.store.all().front();
  const std::vector<std::byte> before = run.copy(0);
  const Tensor to =
      run.rig.device.allocate(p.own_shape(), p.compute_dtype(), Category::params, "to");
  const auto bring = [&] { run.set->elsewhere()->bring_copies({{&p, span_of(to)}})->arrive(); };
  bring();
  run.step(1);
  CHECK(bytes_at(to) == before);
  bring();
  CHECK(bytes_at(to) == run.copy(0));
  CHECK(run.copy(0) != before);
}

TEST_CASE("a rank that owns nothing has nothing in a file, and waits for none of it") {
  Device device(std::make_unique<LateMemory>(), 1 << 20);
  HostUpdates updates(device, {.place = OffloadPlace::host_file, .parameters = true});
  OptimizerOptions options;
  read_options(options, "name: adamw");
  const Mesh mesh{{}, 0, self_factory()};
  updates.bind({.device = &device}, options, mesh, {}, {});
  updates.bring_copies({})->arrive();
  CHECK(updates.copy_bytes_brought() == 0);
  CHECK(updates.facts().pinned_bytes == 0);
  CHECK(updates.facts().memory_bytes == 0);
  REQUIRE(updates.file() != nullptr);
  CHECK(updates.file()->file_bytes() == 0);
}

TEST_CASE("a disk that fails ends the host's updates, and who waits for parameters") {
  for (const bool parameters : {false, true}) {
    const test::TempDir directory;
    Run run("name: adamw\nlr: 0.01\n", kBf16, in_file(directory, true, parameters, 600 << 10),
            std::make_unique<LateMemory>());
    run.step(1);
    (void)run.state(0);  // all is on the disk
    // Of the fourth chunk, which is not read before the first is written.
    spoil_file_in(directory.path(), 3 * ((parameters ? 224 : 192) << 10) + 4096);
    std::string text;
    try {
      if (parameters) {
        for (const auto& p : run.rig.store.all()) {
          const Tensor to =
              run.rig.device.allocate(p->own_shape(), p->compute_dtype(), Category::params, "to");
          run.set->elsewhere()->bring_copies({{p.get(), span_of(to)}})->arrive();
        }
      } else {
        for (int step = 2; step <= 4; ++step) run.step(step);
      }
    } catch (const StorageError& error) {
      text = error.what();
    }
    CHECK_MESSAGE(text.find("has changed embed#") != std::string::npos, text);
  }
}

}  // namespace llmtrain::optim
