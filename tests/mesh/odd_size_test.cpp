// Messages of other sizes than their receivers expect.
#include <tuple>

#include <doctest/doctest.h>

#include "tests/mesh/probe_run.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

TEST_CASE("a message of another size than expected ends all ranks before anybody goes on with it") {
  set_mpi_environment();
  const TempDir scratch;
  const auto exchange = [&](int sent, int expected) {
    std::vector<std::string> command = mpirun(2);
    command.insert(command.end(), {MESH_ODD_SIZE, std::to_string(sent), std::to_string(expected)});
    return run_process(command, scratch.path().string(), {.limit_seconds = 60});
  };
  constexpr std::string_view kWentOn = "went on with what came";
  const ProcessResult same = exchange(8, 8);
  CAPTURE(same.output);
  CHECK(same.exit_code == 0);
  CHECK(same.output.find(kWentOn) != std::string::npos);
  // Of what is too long the library keeps the length to itself; larger messages go in pieces as
  // they are received.
  for (const auto& [sent, expected, text] :
       {std::tuple(8, 16,
                   "rank 1 sent 32 B where 64 were expected: the ranks do not call the same"),
        std::tuple(16, 8, "MPI failed to finish a message: MPI_ERR_TRUNCATE"),
        std::tuple(40'000, 80'000, "rank 1 sent 160000 B where 320000 were expected"),
        std::tuple(80'000, 40'000, "MPI failed to finish a message: MPI_ERR_TRUNCATE")}) {
    const ProcessResult result = exchange(sent, expected);
    CAPTURE(result.output);
    CHECK(result.exit_code == 6);
    CHECK(result.output.find(text) != std::string::npos);
    CHECK(result.output.find(kWentOn) == std::string::npos);
  }
}

}  // namespace llmtrain::test
