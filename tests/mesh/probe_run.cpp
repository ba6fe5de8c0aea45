#include "tests/mesh/probe_run.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

void set_mpi_environment() {
  constexpr std::array<std::pair<const char*, const char*>, 13> kSettings{{
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
      {"OMPI_MCA_mpi_yield_when_idle", "1"},
      {"OMPI_MCA_pml", "ob1"},
      {"OMPI_MCA_btl", "self,vader"},
      {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
      {"OMPI_MCA_oob_tcp_if_include", "lo"},
      {"OMPI_MCA_plm", "isolated"},
      {"OMPI_MCA_plm_rsh_agent", "/bin/false"},
      {"PMIX_MCA_gds", "hash"},
      {"OMP_WAIT_POLICY", "passive"},
  }};
  for (const auto& [name, value] : kSettings) ::setenv(name, value, 1);
  // Launchers that begin at the same moment fail to make their common directory.
  static const TempDir sessions;
  ::setenv("OMPI_MCA_orte_tmpdir_base", sessions.path().c_str(), 1);
}

bool is_quick() {
  const char* text = std::getenv("LLMTRAIN_LAYOUTS");
  return text != nullptr && std::string_view(text) == "quick";
}

std::vector<std::string> mpirun(int ranks) { return {MPIEXEC, "-n", std::to_string(ranks)}; }

namespace {

std::vector<std::int64_t> integers(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::int64_t> values;
  for (std::int64_t value = 0; in >> value;) values.push_back(value);
  return values;
}

// Adds a rank's box; where another rank has the same elements, they must be the same numbers.
void add_box(ProbeResult& result, const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, '|');) parts.push_back(part);
  const std::string name = parts[0].substr(0, parts[0].size() - 1);
  const std::vector<std::int64_t> global = integers(parts[1]);
  const std::vector<std::int64_t> offset = integers(parts[2]);
  const std::vector<std::int64_t> shape = integers(parts[3]);
  std::size_t numel = 1;
  for (const auto d : global) numel *= static_cast<std::size_t>(d);
  const bool of_router = name.starts_with("choices ") || name.starts_with("kept ");
  Logical& tensor = (of_router ? result.routing : result.tensors)[name];
  tensor.values.resize(numel);
  tensor.times.resize(numel);
  std::istringstream values(parts[4]);
  double value = 0;
  for (std::int64_t i = 0; values >> value; ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t d = global.size(); d-- > 0;) {
      at += (offset[d] + rest % shape[d]) * stride;
      rest /= shape[d];
      stride *= global[d];
    }
    const auto element = static_cast<std::size_t>(at);
    if (tensor.times[element]++ > 0 && tensor.values[element] != value) {
      result.problem += fmt::format("{}: ranks differ at element {}\n", name, at);
      return;
    }
    tensor.values[element] = value;
  }
}

void read_rank(ProbeResult& result, const std::filesystem::path& file, bool first) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.find('|') != std::string::npos) {
      add_box(result, line);
      continue;
    }
    const std::size_t space = line.rfind(' ');
    const double value = std::strtod(line.c_str() + space, nullptr);
    constexpr std::string_view kOwn = "own ";
    if (line.starts_with(kOwn)) {
      result.own[line.substr(kOwn.size(), space - kOwn.size())].push_back(value);
      continue;
    }
    const auto [entry, is_new] = result.numbers.emplace(line.substr(0, space), value);
    if (!is_new && entry->second != value) {
      result.problem +=
          fmt::format("{}: {} here, {} on rank 0\n", entry->first, value, entry->second);
    }
    if (is_new && !first) result.problem += line + ": not on rank 0\n";
  }
}

}  // namespace

ProbeResult run_probe(const ProbeModel& model, int ranks, int steps,
                      const std::vector<std::string>& overrides) {
  const TempDir scratch;
  write_file_atomic(scratch / "probe.yaml", model.yaml);
  std::vector<std::string> command = ranks > 1 ? mpirun(ranks) : std::vector<std::string>();
  if (ranks > 1) command.insert(command.end(), {"-x", "LD_PRELOAD=" MESH_COUNT_SENT});
  command.insert(command.end(),
                 {MESH_PROBE, "probe.yaml", scratch.path().string(), std::to_string(steps)});
  command.insert(command.end(), overrides.begin(), overrides.end());
  ProbeResult result;
  result.process =
      run_process(command, scratch.path().string(), {.limit_seconds = 60.0 + 30 * ranks});
  if (result.process.exit_code != 0) {
    result.problem =
        fmt::format("exit code {}{}: {}", result.process.exit_code,
                    result.process.timed_out ? ", timed out" : "", result.process.output);
    return result;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    read_rank(result, scratch / fmt::format("rank-{}.txt", rank), rank == 0);
  }
  for (const auto* tensors : {&result.tensors, &result.routing}) {
    for (const auto& [name, tensor] : *tensors) {
      const auto missing = std::ranges::find(tensor.times, 0);
      if (missing == tensor.times.end()) continue;
      result.problem +=
          fmt::format("{}: no rank has element {}\n", name, missing - tensor.times.begin());
    }
  }
  return result;
}

}  // namespace llmtrain::test
