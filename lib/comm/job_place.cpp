#include "lib/comm/job_place.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "lib/base/plugin.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

using Environment = std::function<const char*(const char*)>;

template <class T = int>
std::optional<T> number(const Environment& environment, const char* name,
                        std::string_view what = "number of processes") {
  const char* text = environment(name);
  if (text == nullptr) return std::nullopt;
  T value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  require<RecipeError>(error == std::errc() && stop == end && value >= 0,
                       "the environment variable {} is '{}', which is no {}", name, text, what);
  return value;
}

/// A variable that is set to nothing counts as absent: scripts export what they do not have.
std::string text_of(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text == nullptr ? "" : text;
}

std::optional<int> port(const Environment& environment, const char* name) {
  if (text_of(environment, name).empty()) return std::nullopt;
  const int value = *number(environment, name, "port");
  require<RecipeError>(value >= 1 && value <= 65'535,
                       "the environment variable {} is {}, which is no port", name, value);
  return value;
}

Launch of_mpirun(const Environment& environment, int size) {
  // torchrun inside of mpirun hands Open MPI's variables on: every process would be the same rank.
  const bool is_torchrun = environment("RANK") != nullptr && environment("MASTER_ADDR") != nullptr;
  const int world = is_torchrun ? number(environment, "WORLD_SIZE").value_or(1) : 1;
  require<RecipeError>(world <= 1 || world == size,
                       "mpirun says that there are {} processes (OMPI_COMM_WORLD_SIZE), and "
                       "torchrun's variables {} (WORLD_SIZE); unset those of the one that did not "
                       "start this process",
                       size, world);
  return {.launcher = "mpirun",
          .place = {.rank = number(environment, "OMPI_COMM_WORLD_RANK").value_or(0),
                    .size = size,
                    .local_rank = number(environment, "OMPI_COMM_WORLD_LOCAL_RANK").value_or(0),
                    .local_size = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE").value_or(size)},
          .connection = size == 1 ? Connection::none : Connection::mpi};
}

/// What torchrun's environment lacks; it has RANK or WORLD_SIZE.
std::string missing_variables(const Environment& environment) {
  std::string missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (!text_of(environment, name).empty()) continue;
    missing += missing.empty() ? name : std::string(" and ") + name;
  }
  return missing;
}

void check_local_place(const JobPlace& place) {
  require<RecipeError>(place.local_size == 0 ||
                           (place.local_rank < place.local_size && place.local_size <= place.size),
                       "LOCAL_RANK is {} and LOCAL_WORLD_SIZE {} in a job of {} processes",
                       place.local_rank, place.local_size, place.size);
}

/// None: it was not torchrun, or one like it.
std::optional<Launch> of_torchrun(const Environment& environment, bool is_step) {
  const auto rank = number(environment, "RANK", "rank");
  const auto size = number(environment, "WORLD_SIZE");
  // A script that calls srun may export WORLD_SIZE to all of its tasks alike; RANK is one's own.
  if (!rank && (is_step || size.value_or(1) <= 1)) return std::nullopt;
  // So may anything else be called RANK.
  if (!size && text_of(environment, "MASTER_ADDR").empty()) return std::nullopt;
  if (rank && size && *size <= 1) {
    require<RecipeError>(*rank < *size, "RANK is {}, but WORLD_SIZE is {}", *rank, *size);
    // One process of torchrun is a task of a bigger step, perhaps, but not for that.
    return Launch{.launcher = "torchrun", .place = {}};
  }
  const std::string missing = missing_variables(environment);
  require<RecipeError>(missing.empty(),
                       "{} {} not set, but other variables of torchrun are: a process of several "
                       "needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT to find the others; "
                       "set {} or unset the others",
                       missing, missing.find(' ') == std::string::npos ? "is" : "are", missing);
  require<RecipeError>(*rank < *size, "RANK is {}, but WORLD_SIZE is {}: ranks are 0 to {}", *rank,
                       *size, *size - 1);
  int at = *port(environment, "MASTER_PORT");
  if (text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True") {
    at += at < 65'535 ? 1 : -1;
  }
  const auto local_rank = number(environment, "LOCAL_RANK", "rank");
  const auto local_size = number(environment, "LOCAL_WORLD_SIZE");
  Launch launch{.launcher = "torchrun",
                .place = {.rank = *rank, .size = *size, .local_rank = 0, .local_size = 0},
                .connection = Connection::tcp,
                .meeting = {text_of(environment, "MASTER_ADDR"), at}};
  if (local_rank && local_size) {
    launch.place.local_rank = *local_rank;
    launch.place.local_size = *local_size;
  }
  check_local_place(launch.place);
  return launch;
}

Rendezvous step_meeting(const Environment& environment, int nodes) {
  Rendezvous meeting{.host = text_of(environment, "MASTER_ADDR")};
  if (meeting.host.empty() && nodes == 1) meeting.host = "127.0.0.1";
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"}) {
    if (meeting.host.empty()) meeting.host = first_host(text_of(environment, list));
  }
  require<RecipeError>(!meeting.host.empty(),
                       "a task of srun without PMI and without SLURM_STEP_NODELIST does not know "
                       "where the others are; set MASTER_ADDR to the machine of rank 0");
  if (const auto given = port(environment, "MASTER_PORT")) {
    meeting.port = *given;
    return meeting;
  }
  const auto job = number<std::uint64_t>(environment, "SLURM_JOB_ID", "job");
  const auto step = number<std::uint64_t>(environment, "SLURM_STEP_ID", "step");
  require<RecipeError>(job && step,
                       "a task of srun without PMI and without SLURM_JOB_ID and SLURM_STEP_ID does "
                       "not know where the others are; set MASTER_PORT to a free port of {}",
                       meeting.host);
  meeting.port = step_port(*job, *step);
  return meeting;
}

Launch of_srun(const Environment& environment, int tasks, bool has_mpi) {
  const int nodes = number(environment, "SLURM_STEP_NUM_NODES").value_or(1);
  Launch launch{.launcher = "srun",
                .place = {.rank = number(environment, "SLURM_PROCID").value_or(0),
                          .size = tasks,
                          .local_rank = number(environment, "SLURM_LOCALID").value_or(0),
                          .local_size = (tasks + nodes - 1) / std::max(1, nodes)},
                .connection = Connection::mpi};
  require<RecipeError>(launch.place.rank < tasks,
                       "SLURM_PROCID is {}, but SLURM_STEP_NUM_TASKS is {}", launch.place.rank,
                       tasks);
  const bool has_pmi = environment("PMIX_RANK") != nullptr || environment("PMI_RANK") != nullptr;
  if (has_pmi && has_mpi) return launch;
  launch.connection = Connection::tcp;
  launch.meeting = step_meeting(environment, nodes);
  return launch;
}

// MPICH, Intel MPI and others of its kind.
Launch of_mpiexec(const Environment& environment) {
  const int size = number(environment, "PMI_SIZE").value_or(1);
  if (size == 1) return {};
  const int rank = number(environment, "PMI_RANK", "rank").value_or(0);
  require<RecipeError>(rank < size, "PMI_RANK is {}, but PMI_SIZE is {}: ranks are 0 to {}", rank,
                       size, size - 1);
  return {.launcher = "mpiexec",
          .place = {.rank = rank,
                    .size = size,
                    .local_rank = number(environment, "MPI_LOCALRANKID", "rank").value_or(rank),
                    .local_size = number(environment, "MPI_LOCALNRANKS").value_or(size)},
          .connection = Connection::mpi};
}

}  // namespace

int step_port(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kCount = kStepPortCount;
  // Steps in a row are few; those of an allocation's shell have numbers close to 2^32.
  return kStepPorts + static_cast<int>((job % kCount * 16 + step % kCount) % kCount);
}

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    // The first number of the first range, and then what is behind the brackets.
    host += list.substr(1, list.find_first_of("-,]") - 1);
    const std::size_t end = list.find(']');
    if (end == std::string_view::npos) return host;
    list.remove_prefix(end + 1);
  }
  return host;
}

Launch launch_of(const Environment& environment, bool has_mpi) {
  if (const auto size = number(environment, "OMPI_COMM_WORLD_SIZE")) {
    return of_mpirun(environment, *size);
  }
  // A batch script has SLURM_NTASKS too, but it is no step.
  const int tasks = number(environment, "SLURM_STEP_NUM_TASKS").value_or(1);
  if (auto launch = of_torchrun(environment, tasks > 1)) return *launch;
  return tasks > 1 ? of_srun(environment, tasks, has_mpi) : of_mpiexec(environment);
}

namespace {

Launch& own_launch() {
  static Launch launch =
      launch_of([](const char* name) { return std::getenv(name); }, !plugin_file("mpi").empty());
  return launch;
}

}  // namespace

const Launch& this_launch() { return own_launch(); }

void set_local_place(int local_rank, int local_size) {
  own_launch().place.local_rank = local_rank;
  own_launch().place.local_size = local_size;
}

}  // namespace llmtrain
