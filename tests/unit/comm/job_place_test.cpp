// What the variables of launchers say.
#include "lib/comm/job_place.hpp"

#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

using namespace llmtrain;

namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables, bool has_mpi = true) {
  return launch_of(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      has_mpi);
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::string refusal(const Variables& variables) {
  try {
    launch(variables);
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "";
}

const Variables kMpirun{{"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_RANK", "5"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kTorchrun{
    {"RANK", "6"},         {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "2"},
    {"MASTER_ADDR", "n1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}};
const Variables kSrun{{"SLURM_STEP_NUM_TASKS", "8"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_PROCID", "6"},
                      {"SLURM_LOCALID", "2"},
                      {"SLURM_STEP_NODELIST", "node[03-05,9],x1"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"},
                      {"SLURM_JOB_ID", "1234"},
                      {"SLURM_STEP_ID", "0"}};

}  // namespace

TEST_CASE("a launch is what mpirun or srun with PMI say, or a process by itself") {
  CHECK(launch({}).place.size == 1);
  CHECK(launch({}).launcher.empty());
  CHECK(launch({}).connection == Connection::none);
  const Launch mpirun = launch(kMpirun);
  CHECK(mpirun.launcher == "mpirun");
  CHECK(mpirun.connection == Connection::mpi);
  CHECK(mpirun.place.rank == 5);
  CHECK(mpirun.place.size == 8);
  CHECK(mpirun.place.local_rank == 1);
  CHECK(mpirun.place.local_size == 4);
  for (const std::string pmi : {"PMIX_RANK", "PMI_RANK"}) {
    const Launch srun = launch(with(kSrun, {{pmi, "6"}}));
    CHECK(srun.launcher == "srun");
    CHECK(srun.connection == Connection::mpi);
    CHECK(srun.place.rank == 6);
    CHECK(srun.place.local_size == 4);
    CHECK(launch(with(kSrun, {{pmi, "6"}}), false).connection == Connection::tcp);
  }
  // A batch script is no task of a step, and one task needs nobody.
  CHECK(launch({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).place.size == 1);
  CHECK(launch({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}).place.size == 1);
  CHECK_THROWS_AS(launch({{"OMPI_COMM_WORLD_SIZE", "many"}}), RecipeError);
}

TEST_CASE("processes of MPICH's mpiexec are no processes by themselves") {
  const Variables hydra{
      {"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const Launch found = launch(hydra);
  CHECK(found.launcher == "mpiexec");
  CHECK(found.connection == Connection::mpi);
  CHECK(found.place.rank == 3);
  CHECK(found.place.size == 4);
  CHECK(found.place.local_rank == 1);
  CHECK(found.place.local_size == 2);
  CHECK(launch(with(hydra, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}})).launcher.empty());
  CHECK(refusal(with(hydra, {{"PMI_RANK", "4"}})) ==
        "PMI_RANK is 4, but PMI_SIZE is 4: ranks are 0 to 3");
  CHECK(launch(with(hydra, kMpirun)).launcher == "mpirun");
  CHECK(launch(with(hydra, kTorchrun)).launcher == "torchrun");
  CHECK(launch(with(hydra, kSrun)).launcher == "srun");
}

TEST_CASE("processes of torchrun meet where it says") {
  const Launch torchrun = launch(kTorchrun);
  CHECK(torchrun.launcher == "torchrun");
  CHECK(torchrun.connection == Connection::tcp);
  CHECK(torchrun.place.rank == 6);
  CHECK(torchrun.place.size == 8);
  CHECK(torchrun.place.local_rank == 2);
  CHECK(torchrun.place.local_size == 4);
  CHECK(torchrun.meeting.host == "n1");
  CHECK(torchrun.meeting.port == 29500);
  // Where its agent has the port, the next one.
  const std::string agent = "TORCHELASTIC_USE_AGENT_STORE";
  CHECK(launch(with(kTorchrun, {{agent, "True"}})).meeting.port == 29501);
  CHECK(launch(with(kTorchrun, {{agent, "False"}})).meeting.port == 29500);
  CHECK(launch(with(kTorchrun, {{agent, "True"}, {"MASTER_PORT", "65535"}})).meeting.port == 65534);
  // Found out when they meet.
  CHECK(launch(without(kTorchrun, "LOCAL_RANK")).place.local_size == 0);
  CHECK(launch(without(kTorchrun, "LOCAL_WORLD_SIZE")).place.local_size == 0);

  CHECK(launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).connection == Connection::none);
  CHECK(launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n1"}}).place.size == 1);
  CHECK(launch({{"WORLD_SIZE", "1"}}).place.size == 1);
  // Somebody else's word.
  CHECK(launch({{"RANK", "3"}}).place.size == 1);
}

TEST_CASE("variables of torchrun that are not enough are refused with those that are missing") {
  for (const std::string name : {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}) {
    CAPTURE(name);
    const std::string text = refusal(without(kTorchrun, name));
    CHECK(text.find(name + " is not set") == 0);
    CHECK(text.find("set " + name + " or") != std::string::npos);
    CHECK(refusal(with(kTorchrun, {{name, ""}}))
              .find(name == "RANK" || name == "WORLD_SIZE" ? "no " : name + " is not set") !=
          std::string::npos);
  }
  CHECK(refusal({{"WORLD_SIZE", "2"}}).find("RANK and MASTER_ADDR and MASTER_PORT are not set") ==
        0);
  CHECK(refusal(with(kTorchrun, {{"RANK", "8"}})).find("RANK is 8, but WORLD_SIZE is 8") == 0);
  CHECK(refusal(with(kTorchrun, {{"RANK", "-1"}})).find("'-1', which is no rank") !=
        std::string::npos);
  CHECK(refusal({{"RANK", "1"}, {"WORLD_SIZE", "1"}}).find("RANK is 1") == 0);
  CHECK(refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}})).find("70000, which is no port") !=
        std::string::npos);
  CHECK(refusal(with(kTorchrun, {{"MASTER_PORT", "0"}})).find("no port") != std::string::npos);
  CHECK(refusal(with(kTorchrun, {{"LOCAL_RANK", "4"}})).find("LOCAL_RANK is 4") == 0);
}

TEST_CASE("tasks of srun without PMI meet on their first machine, at a port of their step") {
  const Launch srun = launch(kSrun);
  CHECK(srun.launcher == "srun");
  CHECK(srun.connection == Connection::tcp);
  CHECK(srun.place.rank == 6);
  CHECK(srun.place.local_rank == 2);
  CHECK(srun.place.local_size == 4);
  CHECK(srun.meeting.host == "node03");
  CHECK(srun.meeting.port == step_port(1234, 0));
  const Launch told = launch(with(kSrun, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "4000"}}));
  CHECK(told.meeting.host == "10.1.2.3");
  CHECK(told.meeting.port == 4000);
  CHECK(launch(with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}})).meeting.host == "127.0.0.1");
  CHECK(launch(without(kSrun, "SLURM_STEP_NODELIST")).meeting.host == "10.0.0.9");
  const Variables nowhere =
      without(without(kSrun, "SLURM_STEP_NODELIST"), "SLURM_LAUNCH_NODE_IPADDR");
  CHECK(refusal(nowhere).find("set MASTER_ADDR") != std::string::npos);
  CHECK(refusal(without(kSrun, "SLURM_STEP_ID")).find("set MASTER_PORT") != std::string::npos);
  CHECK(refusal(with(kSrun, {{"SLURM_PROCID", "8"}})).find("SLURM_PROCID is 8") == 0);
}

TEST_CASE("of several launchers' variables those of the one that started the process count") {
  // mpirun in an allocation, and torchrun as a task of srun.
  CHECK(launch(with(kSrun, kMpirun)).launcher == "mpirun");
  CHECK(launch(with(with(kSrun, kMpirun), {{"PMIX_RANK", "5"}})).launcher == "mpirun");
  CHECK(launch(with(kSrun, kTorchrun)).launcher == "torchrun");
  CHECK(launch(with(with(kSrun, kTorchrun), {{"PMIX_RANK", "6"}})).connection == Connection::tcp);
  // What a script exports to all tasks alike is nobody's rank.
  const Variables exported{{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n7"}, {"MASTER_PORT", "29500"}};
  CHECK(launch(with(kSrun, exported)).launcher == "srun");
  CHECK(launch(with(kSrun, exported)).meeting.host == "n7");
  // mpirun's processes that set torchrun's variables for others, too.
  CHECK(launch(with(kTorchrun, kMpirun)).launcher == "mpirun");
  CHECK(launch(with(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n1"}}))
            .place.size == 8);
  CHECK(refusal(with(with(kTorchrun, kMpirun), {{"OMPI_COMM_WORLD_SIZE", "2"}}))
            .find("mpirun says that there are 2 processes") == 0);
}

TEST_CASE("a step's port is below those that systems give, and its own") {
  std::set<int> ports;
  for (std::uint64_t job = 70'000'123; job < 70'000'123 + 750; ++job) {
    for (std::uint64_t step = 0; step < 16; ++step) ports.insert(step_port(job, step));
  }
  CHECK(ports.size() == 12'000);
  CHECK(*ports.begin() == 20'000);
  CHECK(*ports.rbegin() == 31'999);
  // Of srun in the shell of an allocation.
  CHECK(step_port(~0ull, 4294967290) >= 20'000);
  CHECK(step_port(~0ull, 4294967290) < 32'000);
}

TEST_CASE("the first machine of a list of Slurm is found") {
  CHECK(first_host("node[03-05,9],x1") == "node03");
  CHECK(first_host("node[9,03-05]") == "node9");
  CHECK(first_host("n1") == "n1");
  CHECK(first_host("n1,n2") == "n1");
  CHECK(first_host("a[1-2]b[03-04]-c,d") == "a1b03-c");
  CHECK(first_host("10.0.0.9") == "10.0.0.9");
  CHECK(first_host("").empty());
  CHECK(first_host("n[1-").find('[') == std::string::npos);
  CHECK(first_host("n[") == "n");
  CHECK(first_host(",").empty());
}
