// Optimizer states in a file: the same updates, other memory.
#include <algorithm>
#include <set>

#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {

using Run = OffloadRun;

std::vector<StatefulParameter> stateful(const Run& run) {
  const auto optimizer = run.options.name().make(run.options.name);
  std::vector<StatefulParameter> all;
  for (const auto& p : run.rig.store.all()) {
    all.push_back({p.get(), optimizer->states(*p), optimizer->divisible(*p)});
  }
  std::size_t at = 0;
  for (StatefulParameter& p : all) {
    for (StateSpec& state : p.states) state.dtype = run.set->states()[at++].dtype();
  }
  return all;
}

}  // namespace

TEST_CASE("with its states in a file every optimizer has the bits that it has without") {
  for (const std::string& yaml : with_states()) {
    for (const ParameterDTypes& dtypes : {kFp32, kBf16Remainder, kBf16Stochastic}) {
      CAPTURE(yaml);
      CAPTURE(static_cast<int>(dtypes.form));
      const test::TempDir directory;
      // Whole matrices need room for themselves.
      const bool in_parts = yaml.find("adam") != yaml.npos || yaml.find("lion") != yaml.npos;
      const std::uint64_t buffer = in_parts ? kBuffer : 4 * kBuffer;
      Run plain(yaml, dtypes, std::nullopt);
      Run offloaded(yaml, dtypes, Offload{.buffer_bytes = buffer, .directory = directory.path()});
      check_equal(plain, offloaded);
      for (int step = 1; step <= 5; ++step) {
        plain.step(step);
        offloaded.step(step);
      }
      check_equal(plain, offloaded);
    }
  }
}

TEST_CASE("a table is cut into parts where launches of lists are, and every value is in one") {
  for (const std::string& yaml : with_states()) {
    CAPTURE(yaml);
    const Run run(yaml, kFp32, std::nullopt);
    const auto parameters = stateful(run);
    const ChunkLayout layout = chunk_layout(parameters, Offload{.buffer_bytes = 4 * kBuffer});
    std::vector<std::int64_t> elements(parameters.size());
    std::vector<std::vector<std::int64_t>> values(parameters.size());
    std::size_t last = 0;
    std::uint64_t file = 0;
    for (const ChunkLayout::Chunk& chunk : layout.chunks) {
      CHECK(chunk.place.file_offset == file);
      CHECK(chunk.place.pool_end() <= layout.pool_bytes);
      file += chunk.place.bytes;
      for (const ChunkPart& part : chunk.parts) {
        CHECK(part.parameter >= last);
        last = part.parameter;
        CHECK(part.elements.first == elements[last]);
        elements[last] = part.elements.end();
        const bool ends = elements[last] == parameters[last].parameter->own_slice().count;
        CHECK((ends || elements[last] % kernels::kListChunk == 0));
        values[last].resize(part.values.size());
        for (std::size_t s = 0; s < part.values.size(); ++s) {
          CHECK(part.values[s].first == values[last][s]);
          values[last][s] = part.values[s].end();
          CHECK(part.offsets[s] + static_cast<std::uint64_t>(part.values[s].count) *
                                      size_of(parameters[last].states[s].dtype) <=
                chunk.place.bytes);
        }
      }
    }
    CHECK(file == layout.file_bytes);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Parameter& parameter = *parameters[p].parameter;
      CHECK(elements[p] == parameter.own_slice().count);
      for (std::size_t s = 0; s < values[p].size(); ++s) {
        CHECK(values[p][s] == place_of(parameters[p].states[s], parameter).own.count);
      }
    }
  }
  const Run adam("name: adamw", kFp32, std::nullopt);
  CHECK(chunk_layout(stateful(adam), Offload{.buffer_bytes = kBuffer}).chunks.size() >= 6);
}

TEST_CASE("meta allocates and launches what the CPU does, and states are no optimizer memory") {
  for (const std::string& yaml : with_states()) {
    CAPTURE(yaml);
    const test::TempDir directory;
    std::vector<std::vector<AllocationEvent>> traces;
    for (const bool meta : {false, true}) {
      Rig rig(kBf16, offloaded_model(), meta ? make_meta_memory() : make_cpu_memory());
      OptimizerOptions options;
      read_options(options, yaml);
      rig.device.ledger().start_trace();
      OptimizerSet set(rig.ctx, options, rig.store, rig.mesh, std::nullopt,
                       Offload{.buffer_bytes = 4 * kBuffer, .directory = directory.path()});
      set.zero_grads(rig.ctx);
      run_step(rig, set, 1.0);
      traces.push_back(rig.device.ledger().stop_trace());
      const std::uint64_t pool = rig.device.ledger().held_bytes(Category::offload);
      CHECK(pool <= 4 * kBuffer);
      CHECK(pool > 0);
    }
    CHECK(traces[0] == traces[1]);
    std::set<std::string> held;
    for (const AllocationEvent& event : traces[0]) {
      if (event.category == Category::optimizer) held.insert(event.tag);
    }
    for (const std::string& tag : held) CHECK(tag.find('#') == tag.npos);  // as states have
  }
}

TEST_CASE("what an update needs at once must fit, and the refusal says how much does") {
  const test::TempDir directory;
  const auto run = [&](std::uint64_t buffer) {
    const Run made("name: muon", kFp32,
                   Offload{.buffer_bytes = buffer, .directory = directory.path()});
  };
  // Momentum of the experts: 4.6 KB; Adam's states of the table come in parts of 128 KiB.
  std::string text;
  try {
    run(100'000);
  } catch (const RecipeError& error) {
    text = error.what();
  }
  CHECK(text.find("offload.buffer: has 92KiB, and the tensors of embed, which an update needs at "
                  "once, take 128KiB (raise it to 132KiB, or to 388KiB") == 0);
  CHECK_NOTHROW(run(132 << 10));
}

TEST_CASE("an optimizer without states has nothing to keep elsewhere but masters and parameters") {
  const test::TempDir directory;
  CHECK(Run("name: sgd", kFp32, Offload{.parameters = true, .directory = directory.path()})
            .set->offloaded()
            ->contents() == "parameters");
  CHECK(Run("name: adamw", kBf16,
            Offload{.masters = true, .parameters = true, .directory = directory.path()})
            .set->offloaded()
            ->contents() == "optimizer states, masters and parameters");
  CHECK(Run("name: sgd", kBf16, Offload{.masters = true, .directory = directory.path()})
            .set->offloaded()
            ->contents() == "masters");
  CHECK(Run("name: adamw", kBf16, Offload{.masters = true, .directory = directory.path()})
            .set->offloaded()
            ->contents() == "optimizer states and masters");
  CHECK(Run("name: adamw", kBf16, Offload{.directory = directory.path()})
            .set->offloaded()
            ->contents() == "optimizer states");
  CHECK_THROWS_AS(Run("name: sgd", kFp32, Offload{.directory = directory.path()}), RecipeError);
  CHECK_THROWS_AS(Run("name: sgd", kFp32, Offload{}, true), RecipeError);
}

TEST_CASE("states that are written between steps are those of the next one") {
  const test::TempDir directory;
  Run plain("name: adamw_8bit", kFp32, std::nullopt);
  Run offloaded("name: adamw_8bit", kFp32,
                Offload{.buffer_bytes = kBuffer, .directory = directory.path()});
  plain.step(1);
  plain.step(2);
  offloaded.step(1);  // after which states are read ahead
  for (std::size_t i = 0; i < plain.set->states().size(); ++i) {
    const StateTensor& to = offloaded.set->states()[i];
    const std::vector<std::byte> bytes = plain.state(i);
    const std::size_t half = bytes.size() / 8 * 4;
    const auto of_half = static_cast<std::int64_t>(half / size_of(to.dtype()));
    to.write(of_half, std::span(bytes).subspan(half));
    to.write(0, std::span(bytes).first(half));
  }
  check_goes_on(plain, offloaded);
}

TEST_CASE("a state that the disk has changed is named, and nothing is read of that set any more") {
  const test::TempDir directory;
  Run run("name: adamw", kFp32, Offload{.buffer_bytes = kBuffer, .directory = directory.path()});
  run.step(1);
  (void)run.state(0);  // all is on the disk
  // Of the third chunk, which is not read before the first is written.
  spoil_file_in(directory.path(), (256 << 10) + 4096);
  std::string text;
  try {
    for (int step = 2; step <= 4; ++step) run.step(step);
  } catch (const StorageError& error) {
    text = error.what();
  }
  CHECK(text.find("has changed embed#m") != std::string::npos);
  CHECK_THROWS_AS(run.state(0), StorageError);
}

}  // namespace llmtrain::optim
