// Masters and parameters in the file of optimizer states: the same updates, other memory.
#include <algorithm>

#include "tests/unit/optim/offload_run.hpp"

namespace llmtrain::optim {

namespace {
using Run = OffloadRun;
}

TEST_CASE("with its masters there, too, every optimizer has the bits that it has without") {
  std::vector<std::string> all = with_states();
  all.emplace_back("name: sgd\nlr: 0.01\n");
  for (const std::string& yaml : all) {
    for (const ParameterDTypes& dtypes : {kBf16, kBf16Remainder}) {
      CAPTURE(yaml);
      CAPTURE(static_cast<int>(dtypes.form));
      const test::TempDir directory;
      Run plain(yaml, dtypes, std::nullopt);
      Run offloaded(
          yaml, dtypes,
          Offload{.masters = true, .buffer_bytes = 4 * kBuffer, .directory = directory.path()});
      for (const auto& p : offloaded.rig.store.all()) {
        CHECK(p->master_is_elsewhere());
        CHECK_FALSE(p->master().defined());
        CHECK_FALSE(p->remainder().defined());
      }
      CHECK(offloaded.rig.device.ledger().held_bytes(Category::master) == 0);
      check_equal(plain, offloaded);
      for (int step = 1; step <= 5; ++step) {
        plain.step(step);
        offloaded.step(step);
      }
      check_equal(plain, offloaded);
    }
  }
}

TEST_CASE("with its parameters there, too, every optimizer has the bits that it has without") {
  std::vector<std::string> all = with_states();
  all.emplace_back("name: sgd\nlr: 0.01\n");
  for (const std::string& yaml : all) {
    for (const ParameterDTypes& dtypes : {kFp32, kBf16, kBf16Remainder, kBf16Stochastic}) {
      for (const bool masters : {false, true}) {
        CAPTURE(yaml);
        CAPTURE(static_cast<int>(dtypes.form));
        CAPTURE(masters);
        const test::TempDir directory;
        Run plain(yaml, dtypes, std::nullopt);
        Run offloaded(yaml, dtypes,
                      Offload{.masters = masters,
                              .parameters = true,
                              .buffer_bytes = 6 * kBuffer,
                              .directory = directory.path()});
        for (const auto& p : offloaded.rig.store.all()) {
          CHECK(p->copy_is_elsewhere());
          CHECK_FALSE(p->compute().defined());
          CHECK_FALSE(p->own_compute().defined());
        }
        CHECK(offloaded.rig.device.ledger().held_bytes(Category::params) == 0);
        check_equal(plain, offloaded);
        for (int step = 1; step <= 5; ++step) {
          plain.step(step);
          offloaded.step(step);
        }
        check_equal(plain, offloaded);
      }
    }
  }
}

TEST_CASE("masters that are written between steps, in parts, are those of the next one") {
  struct Kind {
    ParameterDTypes dtypes;
    bool masters, parameters;
  };
  for (const auto& [dtypes, masters, parameters] : {Kind{kBf16, true, false},
                                                    {kBf16Remainder, true, false},
                                                    {kBf16Remainder, true, true},
                                                    {kBf16Remainder, false, true},
                                                    {kFp32, false, true}}) {
    const test::TempDir directory;
    Run plain("name: momentum", dtypes, std::nullopt);
    Run offloaded("name: momentum", dtypes,
                  Offload{.masters = masters,
                          .parameters = parameters,
                          .buffer_bytes = kBuffer,
                          .directory = directory.path()});
    plain.step(1);
    offloaded.step(1);  // after which masters are read ahead
    for (std::size_t i = 0; i < plain.rig.store.all().size(); ++i) {
      std::vector<std::byte> values = plain.rig.store.read(*plain.rig.store.all()[i]);
      std::ranges::reverse(values);
      for (std::size_t at = 3; at < values.size(); at += 4) values[at] = std::byte{0x3f};  // finite
      const auto third = static_cast<std::int64_t>(values.size() / 12);
      for (Run* run : {&plain, &offloaded}) {
        const Parameter& p = *run->rig.store.all()[i];
        run->rig.store.write_part(p, third, std::span(values).subspan(4 * third));
        run->rig.store.write_part(p, 0, std::span(values).first(4 * third));
      }
      const Parameter& p = *offloaded.rig.store.all()[i];
      CHECK(offloaded.rig.store.read(p) == values);
      std::vector<std::byte> part(4);
      offloaded.rig.store.read_part(p, third, part);
      CHECK(std::ranges::equal(part, std::span(values).subspan(4 * third, 4)));
    }
    plain.step(2);
    offloaded.step(2);
    check_equal(plain, offloaded);
  }
}

TEST_CASE("copies of a chunk lie together, behind all else") {
  const test::TempDir directory;
  const Run run("name: adamw", kBf16,
                Offload{.masters = true,
                        .parameters = true,
                        .buffer_bytes = kBuffer,
                        .directory = directory.path()});
  std::vector<StatefulParameter> parameters;
  for (const auto& p : run.rig.store.all()) {
    parameters.push_back({p.get(), {{.name = "m"}, master_spec(*p), copy_spec(*p)}, 1});
  }
  for (const ChunkLayout::Chunk& chunk :
       chunk_layout(parameters, Offload{.buffer_bytes = kBuffer}).chunks) {
    std::uint64_t last_of_others = 0;
    for (const ChunkPart& part : chunk.parts) {
      last_of_others = std::max(last_of_others, std::max(part.offsets[0], part.offsets[1]));
    }
    std::uint64_t last = last_of_others;
    for (const ChunkPart& part : chunk.parts) {
      CHECK(part.offsets[2] > last);
      last = part.offsets[2];
    }
  }
}

}  // namespace llmtrain::optim
