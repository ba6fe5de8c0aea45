#pragma once
/// Optimizers with what they work on in a file, beside those with all of it in memory.

#include <fcntl.h>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "lib/optim/chunk_layout.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

inline constexpr Initializer kNormal{Initializer::Kind::normal, 1.0};

/// A table that is cut into parts, matrices, experts, and what comes behind them in a chunk.
inline std::vector<ParameterSpec> offloaded_model() {
  return {{.name = "embed", .shape = {301, 200}, .role = ParameterRole::embedding, .init = kNormal},
          {.name = "bias", .shape = {37}, .role = ParameterRole::bias, .init = kNormal},
          {.name = "matrix", .shape = {33, 40}, .init = kNormal, .rows_per_head = 11},
          {.name = "experts", .shape = {3, 16, 24}, .init = kNormal},
          {.name = "norm", .shape = {37}, .role = ParameterRole::norm, .init = kNormal},
          {.name = "head", .shape = {90, 256}, .role = ParameterRole::head, .init = kNormal},
          {.name = "last", .shape = {8, 5}, .init = kNormal}};
}

/// Six chunks and more of Adam's states, of which the pool has room for less than all.
inline constexpr std::uint64_t kBuffer = 384 << 10;

struct OffloadRun {
  OffloadRun(const std::string& yaml, const ParameterDTypes& dtypes, std::optional<Offload> offload,
             bool meta = false)
      : OffloadRun(yaml, dtypes, offload, meta ? make_meta_memory() : make_cpu_memory()) {}
  OffloadRun(const std::string& yaml, const ParameterDTypes& dtypes, std::optional<Offload> offload,
             std::unique_ptr<MemoryBackend> memory)
      : rig(kept(dtypes, offload), offloaded_model(), std::move(memory)) {
    read_options(options, yaml);
    set.emplace(rig.ctx, options, rig.store, rig.mesh, std::nullopt, offload);
    if (!offload || !(offload->masters || offload->parameters)) return;
    rig.store.keep_in(*set->elsewhere());
    rig.store.initialize(Rig::kSeed);
  }
  static ParameterDTypes kept(ParameterDTypes dtypes, const std::optional<Offload>& offload) {
    dtypes.master_elsewhere = offload && offload->masters;
    dtypes.copy_elsewhere = offload && offload->parameters;
    return dtypes;
  }
  std::vector<std::byte> copy(std::size_t i) const {
    const Parameter& p = *rig.store.all()[i];
    std::vector<std::byte> bytes(static_cast<std::size_t>(p.box().shape.numel()) *
                                 size_of(p.compute_dtype()));
    rig.store.read_copy(p, 0, bytes);
    return bytes;
  }
  void step(int number) {
    rig.set_gradients(number, 0.1);
    if (number == 3) {  // which is skipped
      const Tensor& g = rig.store.all().front()->grad();
      std::vector<double> values = values_of(g);
      values.front() = std::numeric_limits<double>::infinity();
      set_values(g, values);
    }
    run_step(rig, *set, 1.0);
  }
  std::vector<std::byte> state(std::size_t i) const {
    const StateTensor& s = set->states()[i];
    std::vector<std::byte> bytes(s.bytes());
    s.read(0, bytes);
    return bytes;
  }

  Rig rig;
  OptimizerOptions options;
  std::optional<OptimizerSet> set;
};

inline void check_equal(const OffloadRun& a, const OffloadRun& b) {
  for (std::size_t i = 0; i < a.rig.store.all().size(); ++i) {
    const Parameter &p = *a.rig.store.all()[i], &q = *b.rig.store.all()[i];
    CHECK(a.rig.store.read(p) == b.rig.store.read(q));
    CHECK(a.copy(i) == b.copy(i));
  }
  REQUIRE(a.set->states().size() == b.set->states().size());
  for (std::size_t i = 0; i < a.set->states().size(); ++i) {
    CAPTURE(a.set->states()[i].name);
    CHECK(a.state(i) == b.state(i));
  }
}

/// Of a set whose states were written already: it goes on with the other one's values as that does.
inline void check_goes_on(OffloadRun& from, OffloadRun& to) {
  for (std::size_t i = 0; i < from.rig.store.all().size(); ++i) {
    to.rig.store.write(*to.rig.store.all()[i], from.rig.store.read(*from.rig.store.all()[i]));
  }
  to.set->set_progress(from.set->progress());
  from.step(4);
  to.step(4);
  check_equal(from, to);
}

/// 64 bytes of the only open file in a directory become others.
inline void spoil_file_in(const std::filesystem::path& directory, std::int64_t offset) {
  int file = -1;
  for (int fd = 3; fd < 100; ++fd) {
    char target[4096] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target, sizeof target - 1) <= 0) continue;
    if (std::string(target).starts_with(directory.string())) file = ::open(link.c_str(), O_RDWR);
  }
  REQUIRE(file >= 0);
  const std::vector<char> spoiled(64, 77);
  REQUIRE(::pwrite(file, spoiled.data(), spoiled.size(), offset) == 64);
  ::close(file);
}

/// Options under which each optimizer of the table has states, some of them in bf16 as well.
inline std::vector<std::string> with_states() {
  std::vector<std::string> all{
      "name: adamw\nlr: 0.01\nstate_dtype: bf16\n", "name: adam\nlr: 0.01\nstate_dtype: bf16\n",
      "name: lion\nlr: 0.01\nstate_dtype: bf16\n",
      "name: rmsprop\nlr: 0.01\ncentered: true\nmomentum: 0.5\nstate_dtype: bf16\n"};
  for (const OptimizerRow& row : optimizer_table()) {
    if (row.name == "sgd") continue;
    std::string yaml = "name: " + std::string(row.name) + "\nlr: 0.01\n";
    if (row.name.ends_with("galore")) yaml += "rank: 4\nupdate_proj_gap: 2\n";
    if (row.name == "adafactor") yaml += "beta1: 0.9\n";
    if (row.name == "adagrad") yaml += "initial_accumulator_value: 0.1\n";
    all.push_back(std::move(yaml));
  }
  return all;
}

}  // namespace llmtrain::optim
