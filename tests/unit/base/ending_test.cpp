#include "lib/base/ending.hpp"

#include <filesystem>
#include <stdexcept>

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("an exception ends a program with a code and a text that say who can act") {
  namespace fs = std::filesystem;
  const auto of_path = [](std::errc error) {
    return ending_of(fs::filesystem_error("status", "run/x", std::make_error_code(error)));
  };
  CHECK(of_path(std::errc::io_error).code == ExitCode::storage);
  CHECK(of_path(std::errc::io_error).text == "run/x: Input/output error");
  CHECK(of_path(std::errc::permission_denied).code == ExitCode::invalid_data);
  CHECK(of_path(std::errc::too_many_symbolic_link_levels).code == ExitCode::invalid_data);
  CHECK(ending_of(RecipeError("no such key")).code == ExitCode::recipe);
  CHECK(ending_of(RecipeError("no such key")).text == "no such key");
  CHECK(ending_of(std::runtime_error("x")).code == ExitCode::runtime);
  CHECK(ending_of(std::runtime_error("x")).text == "unexpected: x");
}

}  // namespace llmtrain
