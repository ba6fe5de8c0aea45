// Jobs of mpirun that must not begin, or end before their time.
#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/hash.hpp"
#include "lib/data/source.hpp"
#include "tests/mesh/workshop.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain::test {

TEST_CASE("a signal to one rank stops all at one step, saved") {
  const Workshop w;
  // mpirun hands SIGUSR1 to every rank, which they see at different times.
  const ProcessResult stopped =
      w.run(3,
            {"run.output_dir=s", "training.global_batch_size=3", "training.max_steps=100000",
             "checkpoint.interval=null", "eval.interval=null"},
            {.signal = SIGUSR1, .signal_after = "  20/100000"});
  CAPTURE(stopped.output);
  CHECK(stopped.exit_code == 75);
  CHECK(stopped.output.find("stopped by signal") != std::string::npos);
  CHECK(std::filesystem::exists(w.scratch / "s" / "checkpoints"));
}

namespace {

// A job of two whose ranks are started by commands of their own.
ProcessResult run_apart(const Workshop& w, const std::vector<std::string>& first,
                        const std::vector<std::string>& second) {
  std::vector<std::string> command = mpirun(1);
  command.insert(command.end(), first.begin(), first.end());
  command.insert(command.end(), {":", "-n", "1"});
  command.insert(command.end(), second.begin(), second.end());
  return run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
}

void check_told_apart(const ProcessResult& result, const std::string& text) {
  CAPTURE(result.output);
  CAPTURE(text);
  CHECK(!result.timed_out);
  CHECK(result.exit_code == 6);
  const std::size_t at = result.output.find(text);
  REQUIRE(at != std::string::npos);
  CHECK(result.output.find(text, at + 1) == std::string::npos);  // one rank says it
  CHECK(result.output.find("collectives") == std::string::npos);
}

std::string hash_of(const std::filesystem::path& file) { return to_hex(hash128(read_file(file))); }

// A file that does the same, and is another.
std::filesystem::path changed_copy(const Workshop& w, const std::filesystem::path& of) {
  const std::filesystem::path to = w.scratch / of.filename();
  std::filesystem::copy_file(of, to);
  std::ofstream(to, std::ios::app) << "x";
  return to;
}

}  // namespace

TEST_CASE("ranks with different recipes are told apart at the start, by what differs") {
  const Workshop w;
  const std::vector<std::string> run{LLMTRAIN_EXECUTABLE, "run", "r.yaml", "run.output_dir=d"};
  std::vector<std::string> other = run;
  other.push_back("optimizer.lr=1e-3");
  const ProcessResult result = run_apart(w, run, other);
  check_told_apart(result,
                   "rank 1 has another recipe than rank 0 (lr: 0.001  # optimizer.lr=1e-3 on the "
                   "command line, rank 0: lr: 0.05  # r.yaml:");
  const std::size_t at = result.output.find("as a whole ");
  const std::string hashes = result.output.substr(at, 32 + 10 + 32 + 11);
  CAPTURE(hashes);
  CHECK(std::ranges::count_if(hashes, [](char c) { return std::isxdigit(c) != 0; }) >= 64);

  // Where values stand, and in which file, is no difference.
  const std::string text = read_file(w.scratch / "r.yaml");
  write_file_atomic(w.scratch / "moved.yaml", "# a line more\n" + text);
  std::vector<std::string> moved = run;
  moved[2] = "moved.yaml";
  moved.push_back("training.max_steps=5");
  check_told_apart(run_apart(w, run, moved),
                   "rank 1 has another recipe than rank 0 (max_steps: 5  # training.max_steps=5 on "
                   "the command line, rank 0: max_steps: 12  # r.yaml:");
  moved.back() = "training.max_steps=12";
  const ProcessResult same = run_apart(w, run, moved);
  CAPTURE(same.output);
  CHECK(same.exit_code == 0);
  // But for what follows from the name of the file.
  const auto anonymous = [](const char* file) {
    return std::vector<std::string>{LLMTRAIN_EXECUTABLE, "run", file};
  };
  check_told_apart(run_apart(w, anonymous("r.yaml"), anonymous("moved.yaml")),
                   "rank 1 has another recipe than rank 0 (directory: runs/moved, rank 0: "
                   "directory: runs/r;");
}

TEST_CASE("what keeps one rank from its recipe is said, however short the others' patience is") {
  const Workshop w;
  const std::vector<std::string> run{LLMTRAIN_EXECUTABLE, "run", "r.yaml", "run.output_dir=d",
                                     "resilience.hang_timeout=2s"};
  std::vector<std::string> other = run;
  other.push_back("no.such=1");
  const ProcessResult result = run_apart(w, run, other);
  CAPTURE(result.output);
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("[rank 1] error: ") < result.output.size());
  CHECK(result.output.find("no.such") < result.output.size());
}

TEST_CASE("ranks that run other files are told apart at the start, by their hashes") {
  const Workshop w;
  const std::vector<std::string> rest{"run", "r.yaml", "run.output_dir=d"};
  const auto with = [&](std::vector<std::string> command) {
    command.insert(command.end(), rest.begin(), rest.end());
    return command;
  };
  const std::vector<std::string> usual = with({LLMTRAIN_EXECUTABLE});
  const auto executable = changed_copy(w, LLMTRAIN_EXECUTABLE);
  check_told_apart(run_apart(w, usual, with({executable.string()})),
                   fmt::format("rank 1 runs another llmtrain than rank 0 (executable {}, rank 0: "
                               "executable {}); start the same file everywhere",
                               hash_of(executable), hash_of(LLMTRAIN_EXECUTABLE)));
  const std::string plugin = std::getenv("LLMTRAIN_MPI_PLUGIN");
  const auto other = changed_copy(w, plugin);
  const std::vector<std::string> with_other =
      with({"/usr/bin/env", "LLMTRAIN_MPI_PLUGIN=" + other.string(), LLMTRAIN_EXECUTABLE});
  check_told_apart(
      run_apart(w, usual, with_other),
      fmt::format("(mpi plugin {}, rank 0: mpi plugin {})", hash_of(other), hash_of(plugin)));
}

TEST_CASE("ranks that read another text are told apart before the first step") {
  const Workshop w;
  std::filesystem::create_directory(w.scratch / "elsewhere");
  std::filesystem::copy(w.scratch / "r.yaml", w.scratch / "elsewhere");
  const std::string text = read_file(w.scratch / "text.txt");
  write_file_atomic(w.scratch / "elsewhere" / "text.txt", "Another text. " + text);
  const ProcessResult result =
      w.run_in_shell(2, "[ $OMPI_COMM_WORLD_RANK = 1 ] && cd elsewhere;",
                     fmt::format("run.output_dir={} data.cache_dir={}", (w.scratch / "k").string(),
                                 (w.scratch / "cache").string()));
  check_told_apart(result, "rank 1 has other training data than rank 0 (");
}

TEST_CASE("ranks that would evaluate another text are told apart before the first step") {
  const Workshop w;
  int number = 0;
  const auto name = [&] { return fmt::format("more{}.txt", number); };
  while (!data::is_held_out(name(), {.modulus = 4})) ++number;
  std::filesystem::create_directory(w.scratch / "elsewhere");
  for (const char* file : {"r.yaml", "text.txt"}) {
    std::filesystem::copy(w.scratch / file, w.scratch / "elsewhere");
  }
  write_file_atomic(w.scratch / name(), "A text for evaluations alone.");
  write_file_atomic(w.scratch / "elsewhere" / name(), "A text for evaluations which is another.");
  const ProcessResult result = w.run_in_shell(
      2, "[ $OMPI_COMM_WORLD_RANK = 1 ] && cd elsewhere;",
      fmt::format("'data.sources=[{{path: text.txt, max_document_bytes: 1024}}, "
                  "{{path: {}}}]' run.output_dir={} data.cache_dir={}",
                  name(), (w.scratch / "k").string(), (w.scratch / "cache").string()));
  check_told_apart(result, "rank 1 has other held-out data than rank 0 (");
}

TEST_CASE("ranks whose tokenizers differ are told apart before the first step") {
  const Workshop w;
  const std::filesystem::path elsewhere = w.scratch / "elsewhere";
  std::filesystem::create_directory(elsewhere);
  for (const char* file : {"r.yaml", "text.txt"}) {
    std::filesystem::copy(w.scratch / file, elsewhere);
  }
  // The ids of the text are the same: it has no such signs.
  std::string json = read_file(test_file("unit/data/golden/gpt2.json"));
  write_file_atomic(w.scratch / "tokenizer.json", json);
  const std::string_view usual = R"("!":1,"\"":2)", swapped = R"("!":2,"\"":1)";
  REQUIRE(json.find(usual) != std::string::npos);
  write_file_atomic(elsewhere / "tokenizer.json",
                    json.replace(json.find(usual), usual.size(), swapped));
  const ProcessResult result =
      w.run_in_shell(2, "[ $OMPI_COMM_WORLD_RANK = 1 ] && cd elsewhere;",
                     fmt::format("'tokenizer={{type: bpe, path: tokenizer.json}}' "
                                 "model.vocab_size=700 run.output_dir={} data.cache_dir={}",
                                 (w.scratch / "k").string(), (w.scratch / "cache").string()));
  check_told_apart(result, "rank 1 has other training data than rank 0 (");
}

TEST_CASE("a rank that stops answering is named by the others, who end") {
  const Workshop w;
  const ProcessResult result = w.run_in_shell(
      3,
      "[ $OMPI_COMM_WORLD_RANK = 2 ] && (until grep -qs loss h/metrics.jsonl; do sleep "
      "0.1; done; kill -STOP $$) &",
      "run.output_dir=h training.max_steps=1000000 training.global_batch_size=3 "
      "eval.interval=null checkpoint.interval=null resilience.hang_timeout=2s");
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  CHECK(result.exit_code == 6);
  CHECK(result.output.find("no answer within 2 s from rank 2: #") != std::string::npos);
  const std::string_view last = "last collectives of this rank: #";
  CHECK(result.output.find(last) != std::string::npos);
  const std::string log = read_file(w.scratch / "h" / "logs" / "rank-0.log");
  CHECK(log.find(last) != log.rfind(last));  // the others only there
}

TEST_CASE("a job that is suspended and continued has waited for nobody meanwhile") {
  const Workshop w;
  const ProcessResult result = w.run_in_shell(
      2,
      "(until grep -qs loss h/metrics.jsonl; do sleep 0.1; done; kill -STOP $$; sleep 12; kill "
      "-CONT $$; sleep 3; kill -USR1 $$) &",
      "run.output_dir=h training.max_steps=1000000 eval.interval=null resilience.hang_timeout=2s");
  CAPTURE(result.output);
  CHECK(result.exit_code == 75);
  CHECK(result.output.find("stopped by signal") != std::string::npos);
}

TEST_CASE("a rank that dies ends the others, which name it") {
  const Workshop w;
  // One is killed by its own limit of processor time while the others go on.
  const ProcessResult result =
      w.run_in_shell(3, "[ $OMPI_COMM_WORLD_RANK = 1 ] && ulimit -t 2;",
                     "run.output_dir=k training.max_steps=1000000 training.global_batch_size=3 "
                     "eval.interval=null");
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK(result.output.find("while waiting (perhaps for one that waits itself) for rank 1: #") !=
        std::string::npos);
}

}  // namespace llmtrain::test
