#include "tests/reliability/job.hpp"

#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/file.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/base/shell_word.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/metrics.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/mesh/probe_run.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
run: {device: cpu, output_dir: run, seed: 5, threads: 1}
model: {architecture: llama, vocab_size: 257, hidden_size: 64, num_hidden_layers: 2,
        num_attention_heads: 4, intermediate_size: 128, max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 16, micro_batch_size: 1, global_batch_size: 6, max_steps: 6}
optimizer: {lr: 5.0e-3}
checkpoint: {interval: 2, keep_latest: 2, max_shard_size: 256KiB}
eval: {interval: 3, max_samples: 2}
metrics: {interval: 1, tensorboard: false}
)";

std::string text() {
  std::string words;
  for (int i = 0; i < 700; ++i) {
    words += fmt::format("word{}{}", i * 7919 % 61, i % 9 == 8 ? "\n" : " ");
    if (i % 90 == 89) words += "\n";
  }
  return words;
}

bool has_leftovers(const fs::path& root) {
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (name.find(".tmp-") != std::string::npos || name.find(".old-") != std::string::npos ||
        name.starts_with(".trash-")) {
      return true;
    }
  }
  return false;
}

/// Opens a copy of the store, so that the run itself meets what was left.
constexpr std::int64_t kDamaged = 4;

fs::path damaged_shard(const fs::path& root) {
  return root / checkpoint::step_directory_name(kDamaged) / "shard-0000-0000.safetensors";
}

/// `damaged`: what may be there as it was before.
std::string check_store(const fs::path& root, const Job* damaged = nullptr) {
  const TempDir copy;
  fs::copy(root, copy / "store", fs::copy_options::recursive);
  for (int restart = 0; restart < 2; ++restart) {
    const auto store = checkpoint::CheckpointStore::open_writer(copy / "store");
    const auto found = store.newest_valid(checkpoint::VerifyLevel::hash);
    for (const auto& rejected : found.rejected) {
      const bool was_damaged = damaged != nullptr && rejected.step == kDamaged &&
                               read_file(damaged_shard(copy / "store")) ==
                                   read_file(damaged_shard(damaged->checkpoints()));
      if (!was_damaged) return "not valid: " + rejected.reason;
    }
    if (has_leftovers(copy / "store")) return "leftovers stay";
  }
  return "";
}

// The last step that a line called saved, in whatever directory; 0 if none did.
std::int64_t last_saved(const std::string& output) {
  std::int64_t step = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("saved ") != std::string::npos) {
      step = std::max(step, number_after(line, "/step-"));
    }
  }
  return step;
}

}  // namespace

Overrides Layout::overrides() const {
  Overrides all{fmt::format("checkpoint.async={}", async),
                fmt::format("training.max_steps={}", kSteps), "parallelism=" + parallelism};
  if (local) {  // its path is one of those that io_fault() hits
    all.push_back("checkpoint.local={directory: fast/run/checkpoints, interval: 1}");
    all.push_back("resilience.on_non_finite=rollback");
  }
  return all;
}

std::string Layout::name() const {
  return fmt::format("{} rank{}, {}{}{}{}", ranks, ranks == 1 ? "" : "s", async ? "async" : "sync",
                     parallelism == "{}" ? "" : ", " + parallelism, local ? ", local" : "",
                     tcp ? ", tcp" : "");
}

namespace {

/// A shell that starts `command` once for each rank, as torchrun does, and ends with the exit code
/// of the first that ends badly. Whom the others leave behind for long it kills, and says so.
std::vector<std::string> torchrun(int ranks, const std::vector<std::string>& command) {
  constexpr std::string_view kAwaitAll = R"(
first=0; patience=240
while [ ${#left[@]} -gt 0 ]; do
  next=()
  for p in "${left[@]}"; do
    if kill -0 $p 2> /dev/null; then next+=($p); continue; fi
    wait $p; code=$?
    [ $first = 0 ] && first=$code
  done
  left=("${next[@]}")
  if [ $first != 0 ] && [ ${#left[@]} = 1 ]; then
    patience=$((patience - 1))
    [ $patience = 0 ] && echo left behind && kill -KILL ${left[0]}
  fi
  sleep 0.05
done
exit $first
)";
  std::string script = fmt::format(
      "left=(); for r in $(seq 0 {}); do env RANK=$r LOCAL_RANK=$r WORLD_SIZE={} "
      "LOCAL_WORLD_SIZE={} MASTER_ADDR=localhost MASTER_PORT={}",
      ranks - 1, ranks, ranks, tcp::port_of(tcp::listen_at(0)));
  for (const std::string& word : command) script += " " + shell_word(word);
  script += " & left+=($!); done";
  return {"/bin/bash", "-c", script.append(kAwaitAll)};
}

}  // namespace

Job::Job(const Layout& layout, const Job* prepared) : layout_(layout) {
  set_mpi_environment();
  if (prepared != nullptr) {
    fs::copy(prepared->directory(), directory(), fs::copy_options::recursive);
    return;
  }
  std::ofstream(directory() / "recipe.yaml") << kRecipe;
  std::ofstream(directory() / "text.txt") << text();
}

std::vector<std::string> Job::command(const Environment& environment, const Overrides& more,
                                      const std::string& executable) const {
  std::vector<std::string> command;
  if (layout_.ranks > 1 && !layout_.tcp) command = mpirun(layout_.ranks);
  command.push_back("/usr/bin/env");
  for (const auto& [name, value] : environment) command.push_back(name + "=" + value);
  command.insert(command.end(), {executable, "run", "recipe.yaml"});
  for (const Overrides& overrides : {layout_.overrides(), more}) {
    command.insert(command.end(), overrides.begin(), overrides.end());
  }
  return layout_.tcp ? torchrun(layout_.ranks, command) : command;
}

std::optional<fs::path> Job::local_checkpoints() const {
  if (!fs::exists(checkpoints())) return std::nullopt;
  const auto recorded = train::recorded_local_checkpoints(checkpoints());
  return recorded && fs::exists(*recorded) ? recorded : std::nullopt;
}

ProcessResult Job::run(const Environment& environment, const Overrides& more,
                       const std::string& executable, double limit_seconds) const {
  return run_process(command(environment, more, executable), directory().string(),
                     {.limit_seconds = limit_seconds});
}

ProcessResult Job::run_signalled(const Environment& environment, int signal,
                                 const std::string& after) const {
  return run_process(command(environment, {}, LLMTRAIN_EXECUTABLE), directory().string(),
                     {.limit_seconds = 90, .signal = signal, .signal_after = after});
}

ProcessResult Job::run_for(double seconds, const Overrides& more) const {
  return run_process(command({}, more, LLMTRAIN_EXECUTABLE), directory().string(),
                     {.kill_after_seconds = seconds});
}

ProcessResult Job::run_or_fail(const Overrides& more) const {
  ProcessResult result = run({}, more);
  require(result.exit_code == 0, "{}: exit code {}: {}", layout_.name(), result.exit_code,
          result.output);
  return result;
}

std::string Job::fingerprint(std::int64_t step) const {
  return llmtrain::fingerprint(directory(), static_cast<std::uint64_t>(step));
}

std::int64_t Job::reported() const {
  const fs::path file = directory() / "run" / "metrics.jsonl";
  if (!fs::exists(file)) return 0;
  const auto records = train::read_metrics(file);
  return records.empty() ? 0 : records.back().step;
}

const Job& prepared_job(const Layout& layout, std::int64_t steps) {
  static std::map<std::string, std::unique_ptr<Job>> made;
  std::unique_ptr<Job>& job = made[fmt::format("{} {}", layout.name(), steps)];
  if (job) return *job;
  job = std::make_unique<Job>(layout);
  job->run_or_fail({"checkpoint.keep_latest=null"});
  if (steps == 0) {
    fs::remove_all(job->directory() / "run");
    return *job;
  }
  for (std::int64_t later = steps + Layout::kInterval; later <= Layout::kSteps;
       later += Layout::kInterval) {
    fs::remove_all(job->checkpoints() / fmt::format("step-{:08}", later));
  }
  const fs::path file = job->directory() / "run" / "metrics.jsonl";
  std::string lines;
  for (const train::StepRecord& record : train::read_metrics(file)) {
    if (record.step <= steps) lines += train::to_line(record) + '\n';
  }
  std::ofstream(file) << lines;
  return *job;
}

const Job& damaged_job(const Layout& layout) {
  static std::map<std::string, std::unique_ptr<Job>> made;
  std::unique_ptr<Job>& job = made[layout.name()];
  if (job) return *job;
  job = std::make_unique<Job>(layout, &prepared_job(layout, kDamaged));
  const fs::path shard = damaged_shard(job->checkpoints());
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  return *job;
}

const std::string& expected_fingerprint(const Layout& layout) {
  static std::map<std::string, std::string> known;
  std::string& expected = known[layout.name()];
  if (expected.empty()) {
    const Job job(layout, &prepared_job(layout, 0));
    job.run_or_fail();
    expected = job.fingerprint(Layout::kSteps);
  }
  return expected;
}

std::string weights_of(const Job& job, std::int64_t step) {
  std::map<std::string, std::string> files;
  for (const auto& entry :
       fs::directory_iterator(job.checkpoints() / fmt::format("step-{:08}", step))) {
    if (entry.path().extension() == ".safetensors") {
      files[entry.path().filename()] = to_hex(hash128(read_file(entry.path())));
    }
  }
  return fmt::format("{}", files);
}

std::string check_recovery(const Job& job, const Layout& layout, const std::string& output,
                           std::int64_t steps_before, bool was_damaged) {
  const std::string& expected = expected_fingerprint(layout);
  if (fs::exists(job.checkpoints())) {
    const Job* const damaged = was_damaged ? &damaged_job(layout) : nullptr;
    const std::string wrong = check_store(job.checkpoints(), damaged);
    if (!wrong.empty()) return wrong;
  }
  if (const auto local = job.local_checkpoints()) {
    if (const std::string wrong = check_store(*local); !wrong.empty()) return "local: " + wrong;
  }
  const std::int64_t saved = std::max(steps_before, last_saved(output));
  const std::int64_t reported = job.reported();
  const ProcessResult again = job.run();
  if (again.exit_code != 0) {
    return fmt::format("the next start: exit code {}: {}", again.exit_code, again.output);
  }
  const std::int64_t resumed =
      std::max<std::int64_t>(0, number_after(again.output, "resumed from step "));
  if (resumed < saved) return fmt::format("resumed from {}, {} was saved", resumed, saved);
  const std::int64_t interval = layout.local ? 1 : Layout::kInterval;
  const std::int64_t bound = interval * ((layout.async ? 2 : 1) + (was_damaged ? 1 : 0));
  if (reported - resumed >= bound) {
    return fmt::format("resumed from {}, {} was reported", resumed, reported);
  }
  if (job.fingerprint(Layout::kSteps) != expected) return "ends with another state";
  return has_leftovers(job.checkpoints()) ? "the next start leaves leftovers" : "";
}

}  // namespace llmtrain::test
