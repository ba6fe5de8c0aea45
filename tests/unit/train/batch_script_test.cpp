#include "lib/train/batch_script.hpp"

#include <cstdlib>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
run: {device: cpu}
model: {architecture: llama, vocab_size: 257, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 16, micro_batch_size: 1, global_batch_size: 8, max_steps: 6}
slurm: {nodes: 2, tasks_per_node: 4, executable: llmtrain}
)";

struct Made {
  std::unique_ptr<Recipe> recipe;
  std::string training, data;
};

Made make(const std::vector<std::string>& overrides, const std::string& self = "") {
  const test::TempDir scratch;
  write_file_atomic(scratch / "r.yaml", kRecipe);
  Made made{.recipe = load_recipe(scratch / "r.yaml", overrides)};
  enter_job(*made.recipe);
  const BatchScript script{.name = "my run", .arguments = "r.yaml", .self = self};
  made.training = training_script(*made.recipe, script);
  made.data = data_script(*made.recipe, script, 16);
  return made;
}

std::string problem_of(const std::vector<std::string>& overrides, const std::string& self = "") {
  try {
    make(overrides, self);
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "";
}

bool has_line(const std::string& script, std::string_view line) {
  return script.find(fmt::format("\n{}\n", line)) != std::string::npos;
}

}  // namespace

TEST_CASE("a script asks for what the recipe says, and for nothing that it does not") {
  const std::string plain = make({}).training;
  for (const char* line :
       {"#SBATCH --job-name=my_run", "#SBATCH --output=%x-%j.log", "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4", "#SBATCH --requeue", "#SBATCH --open-mode=append",
        "#SBATCH --signal=USR1@120", "start doctor r.yaml && start run r.yaml"}) {
    CAPTURE(line);
    CHECK(has_line(plain, line));
  }
  for (const char* option : {"--gres", "--cpus-per-task", "--mem", "--time", "--partition",
                             "--account", "--qos", "--array", "B:USR1"}) {
    CAPTURE(option);
    CHECK(plain.find(fmt::format("#SBATCH {}", option)) == std::string::npos);
  }
  const std::string full =
      make({"slurm.cpus_per_task=6", "slurm.memory_per_node=1500MB", "slurm.time=36h",
            "slurm.partition=gpu", "slurm.account=me", "slurm.qos=low", "slurm.signal_lead=90.5",
            "slurm.directives=[--constraint=h100, --exclude=n7]", "slurm.setup=[module load cuda]",
            "slurm.preflight=false", "slurm.mpi=pmix", "slurm.log=logs/%j.txt"})
          .training;
  for (const char* line :
       {"#SBATCH --cpus-per-task=6", "#SBATCH --mem=1431M", "#SBATCH --time=1-12:00:00",
        "#SBATCH --partition=gpu", "#SBATCH --account=me", "#SBATCH --qos=low",
        "#SBATCH --signal=USR1@91", "#SBATCH --constraint=h100", "#SBATCH --exclude=n7",
        "#SBATCH --output=logs/%j.txt", "module load cuda", "start run r.yaml"}) {
    CAPTURE(line);
    CHECK(has_line(full, line));
  }
  CHECK(full.find("srun --mpi=pmix --kill-on-bad-exit=0 --wait=60 --cpus-per-task=6 llmtrain") !=
        std::string::npos);
  CHECK(full.find("doctor") == std::string::npos);
}

TEST_CASE("a machine's tasks are as many as its GPUs") {
  const std::vector<std::string> gpus{"run.device=cuda", "~slurm.tasks_per_node",
                                      "slurm.gpus_per_node=4"};
  const std::string script = make(gpus).training;
  CHECK(has_line(script, "#SBATCH --ntasks-per-node=4"));
  CHECK(has_line(script, "#SBATCH --gres=gpu:4"));
  CHECK(make(gpus).data.find("gres") == std::string::npos);
}

TEST_CASE("the job array that prepares data") {
  const std::string script = make({"slurm.setup=[module load gcc]"}).data;
  for (const char* line :
       {"#SBATCH --job-name=my_run-data", "#SBATCH --array=0-15", "#SBATCH --ntasks=1",
        "module load gcc", "exec llmtrain data prepare r.yaml --slurm-array"}) {
    CAPTURE(line);
    CHECK(has_line(script, line));
  }
  CHECK(script.find("--nodes") == std::string::npos);
}

TEST_CASE("what the job does not fit is refused when the script is made") {
  const auto refuses = [](const std::vector<std::string>& overrides, std::string_view text) {
    const std::string problem = problem_of(overrides);
    CAPTURE(problem);
    CAPTURE(text);
    CHECK(problem.find(text) != std::string::npos);
  };
  refuses({"parallelism.dp=4"},
          "2 machines x 4 tasks are 8 ranks: command line: parallelism.dp=4: 4 takes 4 ranks");
  refuses({"parallelism.tp=3"},
          "2 machines x 4 tasks are 8 ranks: command line: parallelism.tp=3: 3 does not");
  refuses({"training.global_batch_size=4"}, "8 ranks cannot share");
  refuses({"activation_checkpoint={mode: budget, budget: 1KiB}"},
          "even with all blocks computed again");
  refuses({"slurm.gpus_per_node=4"}, "slurm.gpus_per_node=4: asks for GPUs, and run.device is cpu");
  refuses({"run.device=cuda"}, "slurm.gpus_per_node: missing: run.device is cuda");
  refuses({"run.device=cuda", "slurm.gpus_per_node=8"}, "4 tasks for gpus_per_node 8");
  refuses({"slurm.time=2min"}, "slurm.signal_lead: is not shorter than slurm.time");
  refuses({"slurm.partition=a b"}, "slurm.partition=a b: has white space");
  refuses({"slurm.directives=[--time=1]"}, "`--time=1` is --time, which comes from slurm.time");
  refuses({"slurm.directives=[-x n7]"}, "`-x n7` is no long option of one line");
  refuses({"slurm.time=5min", "resilience.exit_margin=5min"},
          "resilience.exit_margin=5min: is not shorter than slurm.time");
  CHECK(problem_of({"slurm.time=5min", "resilience.exit_margin=4min"}) == "");
  for (const char* no_file : {"bin dir/llmtrain", "$HOME/llmtrain", "~/llmtrain"}) {
    refuses({fmt::format("slurm.executable={}", no_file)}, "is one file, in whose name the shell");
  }
  refuses({"slurm.nodse=1"}, "slurm.nodse");
}

TEST_CASE("whatever sbatch takes for an option of the script's own is refused") {
  struct Case {
    std::string_view line, option;
  };
  for (const Case& c :
       {Case{"-N 3", "--nodes"}, Case{"-N3", "--nodes"}, Case{"-n 4", "--ntasks"},
        Case{"-c 2", "--cpus-per-task"}, Case{"-t 1", "--time"}, Case{"-p long", "--partition"},
        Case{"-A me", "--account"}, Case{"-q low", "--qos"}, Case{"-J x", "--job-name"},
        Case{"-o x.log", "--output"}, Case{"-e x.log", "--error"}, Case{"-a 0-3", "--array"},
        Case{"-G 4", "--gpus"}, Case{"--time=1", "--time"}, Case{"--time 1", "--time"},
        Case{"--part=long", "--partition"}, Case{"--nod=3", "--nodes"},
        Case{"--tasks-per-node=2", "--tasks-per-node"}}) {
    const std::string problem = problem_of({fmt::format("slurm.directives=[\"{}\"]", c.line)});
    CAPTURE(c.line);
    CAPTURE(problem);
    CHECK(problem.find(fmt::format("`{}` is {}, which comes from ", c.line, c.option)) !=
          std::string::npos);
  }
  for (const char* other : {"--time-min=10", "--mem-per-cpu=2G", "--comment=-t", "--exclusive"}) {
    CAPTURE(other);
    CHECK(problem_of({fmt::format("slurm.directives=[\"{}\"]", other)}) == "");
  }
}

TEST_CASE("the job runs the file that makes the script, whatever its name, if it is still there") {
  const std::vector<std::string> null{"~slurm.executable"};
  const Made made = make(null, "/opt/my tools/it's $here/llmtrain");
  const std::string quoted = R"('/opt/my tools/it'\''s $here/llmtrain')";
  CHECK(made.training.find(quoted + " \"$@\"") != std::string::npos);
  CHECK(made.data.find("exec " + quoted + " data prepare") != std::string::npos);
  const std::string gone = problem_of(null, "/opt/llmtrain (deleted)");
  CAPTURE(gone);
  CHECK(gone.find("slurm.executable: is null, and /opt/llmtrain was replaced or removed") !=
        std::string::npos);
  CHECK(problem_of(null).find("name it in slurm.executable") != std::string::npos);
  const test::TempDir scratch;
  const std::string odd = (scratch / "llmtrain (deleted)").string();
  write_file_atomic(odd, "");
  CHECK(problem_of(null, odd) == "");
}

// The script's own decisions, by bash with a stand-in for Slurm's commands and for llmtrain.
TEST_CASE("only 75 queues the job again, and not for ever; lost processes wait for Slurm") {
  const test::TempDir scratch;
  const auto end_of = [&](int code, int restarts) {
    Made made = make({"slurm.max_requeues=3", "slurm.node_failure_wait=7", "slurm.preflight=false",
                      "slurm.executable=" + (scratch / "llmtrain").string()});
    write_file_atomic(scratch / "job.sh", made.training);
    write_file_atomic(scratch / "stand_in.sh",
                      "srun() { while [[ $1 == --* ]]; do shift; done; return $CODE; }\n"
                      "scontrol() { echo \"scontrol $*\"; }\n"
                      "squeue() { echo NONE; }\nsleep() { echo \"sleep $1\"; }\n"
                      ". ./job.sh\n");
    const std::string command = fmt::format(
        "cd {} && CODE={} SLURM_JOB_ID=12 SLURM_RESTART_COUNT={} bash stand_in.sh > out 2>&1",
        scratch.path().string(), code, restarts);
    const int status = std::system(command.c_str());
    CHECK(WEXITSTATUS(status) == code);
    return read_file(scratch / "out");
  };
  CHECK(end_of(0, 0) == "");
  for (const int code : {1, 2, 3, 4, 5, 7, 93}) CHECK(end_of(code, 0) == "");
  CHECK(end_of(75, 0) == "scontrol requeue 12\nsleep 60\n");
  CHECK(end_of(75, 2) == "scontrol requeue 12\nsleep 60\n");
  CHECK(end_of(75, 3).find("(slurm.max_requeues): submit it again") != std::string::npos);
  for (const int code : {6, 137, 143}) {
    const std::string end = end_of(code, 0);
    CAPTURE(end);
    CHECK(end.find("sleep 7\n") != std::string::npos);
    CHECK(end.find("scontrol") == std::string::npos);
  }
}

TEST_CASE(
    "a job's end and its starts are what squeue says, not what the environment brought along") {
  const test::TempDir scratch;
  const auto told = [&](const std::string& squeue, const std::string& inherited) {
    Made made = make({"slurm.preflight=false"});
    write_file_atomic(scratch / "job.sh", made.training);
    write_file_atomic(scratch / "stand_in.sh",
                      "srun() { echo \"$SLURM_JOB_END_TIME,$SLURM_RESTART_COUNT\"; }\nsqueue() { " +
                          squeue + "; }\n. ./job.sh\n");
    const std::string command =
        fmt::format("cd {} && TZ=UTC SLURM_JOB_ID=12 {} bash stand_in.sh > out 2>&1",
                    scratch.path().string(), inherited);
    CHECK(std::system(command.c_str()) == 0);
    return read_file(scratch / "out");
  };
  const std::string known = "echo '2030-01-02T03:04:05   3  '";
  const std::string inherited = "SLURM_JOB_END_TIME=77 SLURM_RESTART_COUNT=5";
  CHECK(told(known, "") == "1893553445,3\n");
  CHECK(told(known, inherited) == "1893553445,3\n");
  CHECK(told("echo 'NONE   0'", inherited) == ",0\n");  // a job without a limit
  CHECK(told("return 1", inherited) == "77,5\n");
  CHECK(told("echo", inherited) == "77,5\n");
  CHECK(told("return 1", "") == ",0\n");
}

TEST_CASE("times of Slurm") {
  CHECK(slurm_time(60) == "00:01:00");
  CHECK(slurm_time(59.2) == "00:01:00");
  CHECK(slurm_time(86'399) == "23:59:59");
  CHECK(slurm_time(2 * 86'400 + 3'661) == "2-01:01:01");
}

}  // namespace llmtrain::train
