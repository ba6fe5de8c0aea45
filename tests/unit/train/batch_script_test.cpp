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

Made make(const std::vector<std::string>& overrides) {
  const test::TempDir scratch;
  write_file_atomic(scratch / "r.yaml", kRecipe);
  Made made{.recipe = load_recipe(scratch / "r.yaml", overrides)};
  enter_job(*made.recipe);
  const BatchScript script{.name = "my run", .arguments = "r.yaml"};
  made.training = training_script(*made.recipe, script);
  made.data = data_script(*made.recipe, script, 16);
  return made;
}

std::string problem_of(const std::vector<std::string>& overrides) {
  try {
    make(overrides);
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
  refuses({"parallelism.dp=4"}, "2 machines x 4 tasks are 8 ranks: parallelism.dp is 4");
  refuses({"parallelism.tp=3"}, "2 machines x 4 tasks are 8 ranks: parallelism.tp 3 does not");
  refuses({"training.global_batch_size=4"}, "8 ranks cannot share");
  refuses({"slurm.gpus_per_node=4"}, "slurm.gpus_per_node=4: asks for GPUs, and run.device is cpu");
  refuses({"run.device=cuda"}, "slurm.gpus_per_node: missing: run.device is cuda");
  refuses({"run.device=cuda", "slurm.gpus_per_node=8"}, "4 tasks for gpus_per_node 8");
  refuses({"slurm.time=2min"}, "slurm.signal_lead: is not shorter than slurm.time");
  refuses({"slurm.partition=a b"}, "slurm.partition=a b: has white space");
  refuses({"slurm.directives=[--time=1]"}, "--time comes from slurm.time");
  refuses({"slurm.directives=[-t 1]"}, "`-t 1` is no long option of one line");
  refuses({"slurm.nodse=1"}, "slurm.nodse");
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

TEST_CASE("times of Slurm") {
  CHECK(slurm_time(60) == "00:01:00");
  CHECK(slurm_time(59.2) == "00:01:00");
  CHECK(slurm_time(86'399) == "23:59:59");
  CHECK(slurm_time(2 * 86'400 + 3'661) == "2-01:01:01");
}

}  // namespace llmtrain::train
