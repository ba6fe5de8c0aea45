// A run in a directory that is not its own: T16 of docs/reliability.md.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

struct Guard {
  std::string name;
  Overrides overrides;
  int exit_code = 0;
  std::string says;
  std::function<void(const Job&)> before = {};
  Environment environment = {};
};

void spill(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::trunc) << bytes;
}

void write_lock(const Job& job, const std::string& host, std::uint64_t pid,
                const std::string& more = "") {
  spill(job.checkpoints() / "lock",
        fmt::format(R"({{"host": "{}", "pid": {}, "start_ticks": 1{}}})", host, pid, more));
}

std::string this_host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// Another run's checkpoint, with a number above all of this one's.
void add_higher_step(const Job& job, bool damaged) {
  fs::copy(job.checkpoints() / "step-00000002", job.checkpoints() / "step-00000099",
           fs::copy_options::recursive);
  if (!damaged) return;
  fs::remove(job.checkpoints() / "step-00000099" / "manifest.json");
}

std::vector<Guard> guards() {
  const std::string other_model = "of another model or optimizer";
  const std::string other_data = "is not what step 4 was trained on";
  std::vector<Guard> list{
      {"another seed", {"run.seed=6"}, 4, "made with run.seed 5, the recipe says 6"},
      {"another text",
       {},
       4,
       other_data,
       [](const Job& job) {
         std::ofstream(job.directory() / "text.txt", std::ios::app) << "one more line\n";
       }},
      {"another division of the text", {"data.eval_modulus=3"}, 4, other_data},
      {"another sequence length", {"training.seq_len=32"}, 4, other_data},
      {"another packing", {"data.packing.cross_document_attention=true"}, 4, other_data},
      {"another tokenizer", {"tokenizer={type: bpe, vocab_size: 257}"}, 4, other_data},
      {"another width", {"model.hidden_size=32"}, 4, "in the checkpoint, but this run needs"},
      {"another inner width", {"model.intermediate_size=96"}, 4, "but this run needs"},
      {"a layer more", {"model.num_hidden_layers=3"}, 4, other_model},
      {"a layer fewer", {"model.num_hidden_layers=1"}, 4, other_model},
      {"another vocabulary", {"model.vocab_size=300"}, 4, "but this run needs"},
      {"another family",
       {"model={architecture: gpt2, vocab_size: 257, hidden_size: 64, "
        "num_hidden_layers: 2, num_attention_heads: 4, "
        "max_position_embeddings: 64}"},
       4,
       other_model},
      {"tied tables",
       {"model.tie_word_embeddings=true"},
       4,
       "has a head of its own (lm_head.weight), and model.tie_word_embeddings is true"},
      {"a head of its own after tied tables",
       {},
       0,
       "the checkpoint has no head of its own",
       [](const Job& job) {
         fs::remove_all(job.directory() / "run");
         job.run({}, {"model.tie_word_embeddings=true", "training.max_steps=4"});
       }},
      {"other heads of the same size",
       {"model.num_attention_heads=2"},
       4,
       "model.num_attention_heads is 4 there and 2 in the recipe"},
      {"another epsilon of norms",
       {"model.rms_norm_eps=1e-3"},
       4,
       "model.rms_norm_eps is 1e-05 there and 0.001 in the recipe"},
      {"another base of positions",
       {"model.rope_theta=500"},
       0,
       "changed since then: model.rope_theta"},
      {"masters and states of FP64",
       {"precision.compute=fp64"},
       0,
       "changed since then: precision.compute"},
      {"parameters of bf16 without masters",
       {"precision={compute: bf16, master: none}"},
       0,
       "FP32 parameters are rounded to bf16"},
      {"another optimizer", {"optimizer.name=sgd"}, 4, other_model},
      {"another with other states", {"optimizer.name=muon"}, 4, other_model},
      {"another learning rate", {"optimizer.lr=1e-3"}, 0, "changed since then: optimizer.lr"},
      {"a run that shall begin", {"checkpoint.resume=never"}, 2, "checkpoint.resume is never"},
      {"a run that shall go on where nothing is",
       {"checkpoint.resume=must", "run.output_dir=elsewhere"},
       4,
       "no valid checkpoint to resume from"},
      {"a step that is named", {"checkpoint.resume=2"}, 0, "went back to step 2"},
      {"a step that is named and missing",
       {"checkpoint.resume=3"},
       4,
       "no checkpoint of step 3; there are steps 2, 4"},
      {"another run's directory of a higher step",
       {},
       0,
       "checkpoint of step 99 is not used",
       [](const Job& job) { add_higher_step(job, false); }},
      {"a damaged one",
       {},
       0,
       "checkpoint of step 99 is not used",
       [](const Job& job) { add_higher_step(job, true); }},
      {"a newer one that leads nowhere",
       {},
       0,
       "checkpoint of step 6 is not used",
       [](const Job& job) {
         fs::create_directory_symlink(job.directory() / "not mounted",
                                      job.checkpoints() / "step-00000006");
       }},
      {"a file of a newer one's name",
       {},
       0,
       "checkpoint of step 6 is not used",
       [](const Job& job) { spill(job.checkpoints() / "step-00000006", "a file"); }},
      {"a lock of a process that runs",
       {},
       7,
       fmt::format("held by process {}", ::getppid()),
       [](const Job& job) {
         std::ifstream file(fmt::format("/proc/{}/stat", ::getppid()));
         std::string stat;
         std::getline(file, stat);
         std::istringstream fields(stat.substr(stat.rfind(')') + 1));
         std::string field;
         for (int number = 3; number <= 22; ++number) fields >> field;
         spill(job.checkpoints() / "lock",
               fmt::format(R"({{"host": "{}", "pid": {}, "start_ticks": {}}})", this_host(),
                           ::getppid(), field));
       }},
      {"a lock of a process that is gone",
       {},
       0,
       "resumed from step 4",
       [](const Job& job) { write_lock(job, this_host(), 4'000'000); }},
      {"a lock of a later process with its number",
       {},
       0,
       "resumed from step 4",
       [](const Job& job) {
         write_lock(job, this_host(), static_cast<std::uint64_t>(::getpid()));
       }},
      {"a lock from before this host was started",
       {},
       0,
       "resumed from step 4",
       [](const Job& job) {
         write_lock(job, this_host(), 1, R"(, "boot_id": "6753a63c-0000-0000-0000-000000000000")");
       }},
      {"a lock of another host",
       {},
       7,
       "on host elsewhere; two runs must not write",
       [](const Job& job) { write_lock(job, "elsewhere", 12); }},
      {"a lock of another Slurm job",
       {},
       7,
       "(Slurm job 70, start 1)",
       [](const Job& job) { write_lock(job, "elsewhere", 12, R"(, "job": "70", "restarts": 0)"); },
       {{"SLURM_JOB_ID", "71"}, {"SLURM_RESTART_COUNT", "1"}}},
      {"a lock of this Slurm job's earlier start",
       {},
       0,
       "an earlier start of this Slurm job 71",
       [](const Job& job) { write_lock(job, "elsewhere", 12, R"(, "job": "71", "restarts": 0)"); },
       {{"SLURM_JOB_ID", "71"}, {"SLURM_RESTART_COUNT", "1"}}},
      {"a lock that nobody can read",
       {},
       7,
       "If no other run writes there, delete the file",
       [](const Job& job) { spill(job.checkpoints() / "lock", "junk"); }},
      {"a lock that is longer than any",
       {},
       7,
       "If no other run writes there, delete the file",
       [](const Job& job) { spill(job.checkpoints() / "lock", std::string(5000, ' ')); }},
      {"a lock that is a directory",
       {},
       7,
       "cannot open the lock: Is a directory",
       [](const Job& job) { std::filesystem::create_directory(job.checkpoints() / "lock"); }},
  };
  return list;
}

}  // namespace

TEST_CASE("T16 a run in a directory that is not its own says so, and changes nothing there") {
  Journal journal("T16", 1);  // whole, at every change
  const Layout layout;
  int cases = 0;
  for (const Guard& guard : guards()) {
    ++cases;
    journal.run(guard.name, [&]() -> std::string {
      const Job job(layout, &prepared_job(layout, 4));
      if (guard.before) guard.before(job);
      const ProcessResult result = job.run(guard.environment, guard.overrides);
      const bool says = result.output.find(guard.says) != std::string::npos;
      if (result.exit_code != guard.exit_code || !says) {
        return fmt::format("exit code {}: {}", result.exit_code, result.output);
      }
      const auto store = checkpoint::CheckpointStore::open_reader(job.checkpoints());
      const auto newest = store.newest_valid(checkpoint::VerifyLevel::hash);
      const std::uint64_t expected = guard.exit_code == 0 ? 6 : 4;
      if (newest.step != expected) {
        return fmt::format("step {} is the newest", newest.step.value_or(0));
      }
      // Nothing newer than a good one makes retention delete that.
      return store.list().size() >= 2 ? "" : "one checkpoint is left";
    });
  }
  ++cases;
  journal.run("checkpoints that all lead nowhere", [&]() -> std::string {
    const Job job(layout, &prepared_job(layout, 4));
    const fs::path archive = job.directory() / "archive", away = job.directory() / "away";
    fs::create_directory(away);
    for (const char* step : {"step-00000002", "step-00000004"}) {
      fs::rename(job.checkpoints() / step, away / step);
      fs::create_directory_symlink(archive / step, job.checkpoints() / step);
    }
    const ProcessResult result = job.run();
    const bool says = result.output.find("no valid checkpoint to resume") != std::string::npos;
    if (result.exit_code != 4 || !says) return result.output;
    if (job.reported() != 4) return "metrics are gone";
    fs::rename(away, archive);  // mounted again
    const ProcessResult again = job.run();
    return again.exit_code == 0 && job.reported() == 6 ? "" : again.output;
  });
  CHECK(cases >= 24);
  journal.check();
}

}  // namespace llmtrain::test
