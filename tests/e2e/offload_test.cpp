// offload.optimizer and offload.master: nvme keep optimizer states and masters in a file: the same
// runs, bit for bit.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

/// Chunks of a few KiB: states of the tiny model are twenty of them.
const Overrides kOffload{"offload={optimizer: nvme, buffer: 96KiB}"};
const Overrides kWithMasters{"offload={optimizer: nvme, master: nvme, buffer: 128KiB}"};

const std::vector<Overrides> kOptimizers{
    {"optimizer.name=adamw"},
    {"optimizer.name=lion"},
    {"optimizer.name=momentum", "optimizer.lr=1e-2"},
    {"optimizer.name=adafactor", "optimizer.beta1=0.9"},
    {"optimizer.name=adamw_8bit", "optimizer.min_8bit_size=256"},
    {"optimizer.name=muon"},
    {"optimizer.name=adamw", "precision.compute=bf16", "precision.master=fp32"},
    {"optimizer.state_dtype=bf16", "precision.compute=bf16"},
    {"optimizer.name=adam_mini", "precision.compute=bf16", "precision.master=none"}};

std::int64_t bytes(const Json& plan, const char* category) {
  return plan["held_bytes"][category].get<std::int64_t>();
}

std::ptrdiff_t names_in(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

void check_refused(const Overrides& overrides, const std::string& says) {
  CAPTURE(says);
  const Workspace here(kTinyRecipe);
  const auto result = here.call(joined({"check", "recipe.yaml"}, overrides));
  CHECK(result.exit_code == 2);
  CHECK_MESSAGE(result.output.find(says) != std::string::npos, result.output);
}

}  // namespace

TEST_CASE("a run has the bits that it has with its optimizer states in memory") {
  for (const Overrides& optimizer : kOptimizers) {
    CAPTURE(optimizer.front());
    const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
    run_well(plain, optimizer);
    const auto result = offloaded.run(joined(optimizer, kOffload));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(offloaded.path, 6) == outcome(plain.path, 6));
    CHECK(result.output.find("6 steps took memory as planned, allocation by allocation") !=
          std::string::npos);
    CHECK(names_in(offloaded.path / "run" / "offload") == 0);
  }
}

TEST_CASE("a run has the bits that it has with its masters in memory, and goes on either way") {
  const std::vector<Overrides> all{
      {"precision.compute=bf16", "optimizer.name=adamw"},
      {"precision={compute: bf16, master: bf16+remainder}", "optimizer.name=adafactor"},
      {"precision.compute=fp16", "optimizer.name=muon"},
      {"precision={compute: fp8, fp8: {scaling: delayed, include: ['*']}}", "optimizer.name=lion"},
      {"precision.compute=bf16", "optimizer.name=sgd", "optimizer.lr=1e-1"},
      {"precision.compute=bf16", "checkpoint.async=true", "resilience.checksum_every=1"}};
  for (const Overrides& settings : all) {
    CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
    const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
    run_well(plain, settings);
    const auto result = offloaded.run(joined(settings, kWithMasters));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(offloaded.path, 6) == outcome(plain.path, 6));
    CHECK(result.output.find("6 steps took memory as planned, allocation by allocation") !=
          std::string::npos);
    CHECK(result.output.find("masters: ") != std::string::npos);
    for (const bool first : {true, false}) {
      const Workspace here(kTinyRecipe);
      const auto stopped = here.run(first ? joined(settings, kWithMasters) : settings,
                                    {.signal = SIGTERM, .signal_after = "step-00000002"});
      REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
      run_well(here, first ? settings : joined(settings, kWithMasters));
      CHECK(outcome(here.path, 6) == outcome(plain.path, 6));
    }
  }
}

TEST_CASE("the plan has masters in the file, and no memory for them") {
  const Workspace here(kTinyRecipe);
  for (const auto& [master, size] : {std::pair{"fp32", 4}, std::pair{"bf16+remainder", 2}}) {
    const Overrides narrow{fmt::format("precision={{compute: bf16, master: {}}}", master)};
    const Json plain = plan_of(here, narrow), states = plan_of(here, joined(narrow, kOffload)),
               both = plan_of(here, joined(narrow, kWithMasters));
    CHECK(bytes(states, "master") == bytes(plain, "master"));
    const std::int64_t parameters = plain["parameters"].get<std::int64_t>();
    CHECK(bytes(plain, "master") >= size * parameters);
    CHECK(bytes(both, "master") == 0);
    for (const char* category : {"params", "grads", "activations", "workspace"}) {
      CHECK(bytes(both, category) == bytes(plain, category));
    }
    const auto file = [](const Json& plan) { return plan["offload"]["file_bytes"].get<double>(); };
    // Chunks of another size have other ends.
    CHECK(file(both) > file(states) + 0.9 * size * static_cast<double>(parameters));
    CHECK(both["offload"]["contents"] == "optimizer states and masters");
    CHECK(both["checkpoint_bytes"] == plain["checkpoint_bytes"]);
  }
  const auto text =
      here.call(joined({"plan", "recipe.yaml", "precision.compute=bf16"}, kWithMasters));
  CHECK(text.output.find("optimizer states and masters") != std::string::npos);
}

TEST_CASE("with micro-batches and clipping, with threads instead of io_uring, without checksums") {
  const Overrides settings{"training.global_batch_size=8", "optimizer.max_grad_norm=0.01",
                           "optimizer.max_grad_value=0.001"};
  const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
  run_well(plain, settings);
  run_well(offloaded, joined(joined(settings, kOffload), {"offload.checksum=false"}));
  CHECK(outcome(offloaded.path, 6) == outcome(plain.path, 6));
  const Workspace by_threads(kTinyRecipe);
  ::setenv("LLMTRAIN_IO_URING", "off", 1);
  const auto result = by_threads.run(joined(settings, kOffload));
  ::unsetenv("LLMTRAIN_IO_URING");
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.output.find("read and written by pread and pwrite") != std::string::npos);
  CHECK(outcome(by_threads.path, 6) == outcome(plain.path, 6));
}

TEST_CASE("what was saved with offload goes on without, and the other way round") {
  const Workspace whole(kTinyRecipe);
  run_well(whole, {});
  const std::string expected = outcome(whole.path, 6);
  const Overrides async = joined(kOffload, {"checkpoint.async=true"});
  struct Way {
    Overrides before, after;
  };
  for (const Way& way : {Way{kOffload, {}}, Way{{}, kOffload}, Way{kOffload, kOffload},
                         Way{async, {}}, Way{{}, async}}) {
    const Workspace here(kTinyRecipe);
    const auto stopped = here.run(way.before, {.signal = SIGTERM, .signal_after = "step-00000002"});
    REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
    const auto rest = here.run(way.after);
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(rest.output.find("resumed from step") != std::string::npos);
    CHECK(outcome(here.path, 6) == expected);
  }
}

TEST_CASE("a way back in place reads states into the file") {
  const Overrides spikes{"optimizer.lr=1",
                         "resilience={on_loss_spike: rollback, loss_spike_window: 1, "
                         "loss_spike_factor: 1.001, max_rollbacks: 2}"};
  const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
  const auto expected = plain.run(spikes);
  const auto result = offloaded.run(joined(spikes, kOffload));
  CHECK(result.exit_code == expected.exit_code);
  REQUIRE(expected.output.find("went back to step") != std::string::npos);
  CHECK(result.output.find("went back to step") != std::string::npos);
  CHECK(losses(plain) == losses(offloaded));
}

TEST_CASE("the plan has the pool for the states, and says what goes to the disk and back") {
  const Workspace here(kTinyRecipe);
  const Json plain = plan_of(here, {}), offloaded = plan_of(here, kOffload);
  CHECK(bytes(plain, "offload") == 0);
  CHECK(bytes(offloaded, "offload") > 0);
  CHECK(bytes(offloaded, "offload") <= 96 << 10);
  for (const char* category : {"params", "master", "grads", "activations", "workspace"}) {
    CHECK(bytes(offloaded, category) == bytes(plain, category));
  }
  const std::int64_t file = offloaded["offload"]["file_bytes"].get<std::int64_t>();
  const std::int64_t states = 8 * plain["parameters"].get<std::int64_t>();
  CHECK(file >= states);
  CHECK(offloaded["offload"]["step_written_bytes"] == file);
  // What is left are the decision and the tables of launches.
  CHECK(bytes(plain, "optimizer") - bytes(offloaded, "optimizer") > 9 * states / 10);
  CHECK(bytes(offloaded, "optimizer") < 16 << 10);
  CHECK(plain.find("offload") == plain.end());
  const auto text = here.call(joined({"plan", "recipe.yaml"}, kOffload));
  CHECK(text.output.find("in a file of this rank; a step reads and writes") != std::string::npos);
}

TEST_CASE("a kill leaves no file, and the next start goes on") {
  const Workspace whole(kTinyRecipe), here(kTinyRecipe);
  const Overrides more{"training.max_steps=200", "eval.interval=null", "checkpoint.interval=50",
                       "offload.path=fast"};
  const auto killed =
      here.run(joined(kOffload, more), {.signal = SIGKILL, .signal_after = " 60/200"});
  REQUIRE_MESSAGE(killed.exit_code == -SIGKILL, killed.output);
  CHECK(names_in(here.path / "fast") == 0);
  here.write("fast/.unnamed-a1b2c3", "what a file system without O_TMPFILE would have");
  run_well(here, joined(kOffload, more));
  CHECK(names_in(here.path / "fast") == 0);
  CHECK_FALSE(fs::exists(here.path / "run" / "offload"));
  run_well(whole, {"training.max_steps=200", "eval.interval=null", "checkpoint.interval=50"});
  CHECK(outcome(here.path, 200) == outcome(whole.path, 200));
}

TEST_CASE("what cannot be offloaded is refused when the recipe is checked") {
  check_refused({"offload.optimizer=host"}, "the memory of a CPU is the host's");
  check_refused({"offload.optimizer=host"}, "or set nvme, which keeps them in a file");
  check_refused({"offload.parameters=host"},
                "offload.parameters=host: does nothing without offload.optimizer: host");
  const Overrides on_host{"run.device=cuda", "precision.compute=bf16", "offload.optimizer=host"};
  check_refused(joined(on_host, {"offload.master=nvme"}),
                "offload.master=nvme: does nothing without offload.optimizer: nvme");
  check_refused({"run.device=cuda", "precision.compute=bf16", "offload.master=host"},
                "offload.master=host: does nothing without offload.optimizer: host");
  check_refused(joined(on_host, {"offload.parameters=nvme"}),
                "offload.parameters=nvme: does nothing without offload.optimizer: nvme");
  check_refused(joined(on_host, {"offload.path=fast"}), "offload.path=fast: does nothing without");
  check_refused(joined(on_host, {"offload.checksum=false"}),
                "offload.checksum=false: does nothing without");
  check_refused(joined(on_host, {"offload.activations=[linear]", "offload.path=fast"}),
                "offload.path=fast: is of files, and activations of a GPU");
  check_refused(joined(on_host, {"optimizer.name=muon"}), "host, but muon multiplies matrices");
  check_refused(joined(on_host, {"optimizer.name=sgd"}), "sgd keeps no states");
  check_refused(joined(on_host, {"optimizer.name=adafactor", "parallelism.tp=2"}),
                "updates of adafactor exchange among 2 ranks of tp");
  check_refused({"offload.master=nvme", "precision.compute=bf16"},
                "offload.master=nvme: does nothing without offload.optimizer: nvme");
  check_refused({"offload={optimizer: nvme, master: nvme}"},
                "no masters are kept beside what products read here");
  check_refused(
      {"offload={optimizer: nvme, master: nvme}", "precision={compute: bf16, master: none}"},
      "no masters are kept beside what products read here");
  check_refused({"offload.path=fast"},
                "offload.path=fast: does nothing without offload.optimizer: nvme");
  check_refused({"offload.buffer=1GiB"}, "offload.buffer=1GiB: does nothing without");
  check_refused({"offload.checksum=false"}, "offload.checksum=false: does nothing without");
  check_refused({"offload.optimizer=nvme", "optimizer.name=sgd"}, "sgd keeps no states");
  check_refused({"offload={optimizer: nvme, buffer: 64KiB}", "model.hidden_size=256",
                 "model.intermediate_size=512", "optimizer.name=muon"},
                "which an update needs at once, take");
}

TEST_CASE("a directory that cannot be made ends the run with the storage's exit code") {
  const Workspace here(kTinyRecipe);
  here.write("file", "in the way");
  const auto result = here.run(joined(kOffload, {"offload.path=file/inside"}));
  CHECK(result.exit_code == 7);
  CHECK_MESSAGE(result.output.find("file/inside: cannot create the directory") != std::string::npos,
                result.output);
}

}  // namespace llmtrain
