#pragma once
/// Runs of mesh_probe under mpirun, and what their ranks found, put together again.

#include <map>
#include <string>
#include <vector>

#include "tests/support/process.hpp"

namespace llmtrain::test {

/// A logical tensor that was put together from the ranks' boxes.
struct Logical {
  std::vector<double> values;
  std::vector<int> times;  // how often ranks have each element
};

struct ProbeResult {
  ProcessResult process;
  /// "gradient <name>", "master <name>" and "state#<state> <name>".
  std::map<std::string, Logical> tensors;
  /// On the CPU: "choices step <step> layer <layer>", the experts of every token of a step, and
  /// "kept ..." where their room is limited.
  std::map<std::string, Logical> routing;
  /// What each rank has of its own, by rank: "most rows" of its experts at once, "room" for them,
  /// "scale <number>" of tensors in FP8, in the order in which the first step made them.
  std::map<std::string, std::vector<double>> own;
  /// "loss <step>" (with the z-loss), "norm <step>": of rank 0; the others must have the same.
  std::map<std::string, double> numbers;
  /// What ranks disagree about, or what is missing; empty if all is well.
  std::string problem;
};

/// The recipe of a probe, of which overrides change parts.
struct ProbeModel {
  std::string name;
  std::string yaml;
};

/// Runs `ranks` processes (one without mpirun) for `steps` steps.
ProbeResult run_probe(const ProbeModel& model, int ranks, int steps,
                      const std::vector<std::string>& overrides);

/// Whether there is little time (LLMTRAIN_LAYOUTS=quick, as in scripts/test.sh): of what many runs
/// show in the same way, the others are then left to scripts/mesh.sh.
bool is_quick();

/// The command line of mpirun that starts `ranks` of what follows, as on a machine with as many
/// cores; needs mpi_environment().
std::vector<std::string> mpirun(int ranks);
/// Sets what Open MPI needs to run as a test: as root, on fewer cores than ranks, on this machine
/// alone, quietly.
void set_mpi_environment();

}  // namespace llmtrain::test
