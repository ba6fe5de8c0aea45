#pragma once
/// Where a process stands among those of its job, as its launcher says.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace llmtrain {

struct JobPlace {
  int rank = 0;
  int size = 1;
  /// Among the processes on this machine.
  int local_rank = 0;
  int local_size = 1;
};

/// The address at which the processes of a job find each other.
struct Rendezvous {
  /// A name or a numeric address, of rank 0's machine.
  std::string host;
  int port = 0;
};

/// What connects the processes of a job.
enum class Connection { none, mpi, tcp };

/// How this process was started.
struct Launch {
  /// "mpirun", "torchrun", "srun"; empty: by itself.
  std::string launcher;
  JobPlace place;
  Connection connection = Connection::none;
  /// Of `tcp`.
  Rendezvous meeting = {};
};

/// By the variables that launchers set, of which the first that are there decide:
/// 1. Open MPI's mpirun: MPI.
/// 2. torchrun and launchers like it, which set RANK: TCP, at MASTER_ADDR and MASTER_PORT. Where
/// the
///    agent of torchrun listens at that port itself, at the next one. LOCAL_RANK and
///    LOCAL_WORLD_SIZE may be absent: a local_size of 0 then, until the processes have met.
/// 3. srun: MPI where it gave PMI and `has_mpi`; else TCP, at the first machine of the step and a
///    port from kStepPorts on that follows from job and step, or at MASTER_ADDR and MASTER_PORT.
/// RecipeError, with the remedy, for variables that contradict each other, or of which some are
/// missing: each process would train a run of its own.
Launch launch_of(const std::function<const char*(const char*)>& environment, bool has_mpi = true);

/// Steps of srun meet at 20,000 to 31,999: below the ports that systems give to whoever asks.
inline constexpr int kStepPorts = 20'000;
inline constexpr int kStepPortCount = 12'000;
/// Neither two steps of a job, unless it has thousands, nor two of the 750 jobs before it with their
/// first 16 steps share one.
int step_port(std::uint64_t job, std::uint64_t step);
/// "node03" of Slurm's "node[03-05,9],x1"; empty where there is none.
std::string first_host(std::string_view list);

/// Of this process.
const Launch& this_launch();
/// What the processes have found out when they met, where the launcher did not say.
void set_local_place(int local_rank, int local_size);

}  // namespace llmtrain
