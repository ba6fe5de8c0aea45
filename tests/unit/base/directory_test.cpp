#include "lib/base/directory.hpp"

#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

TEST_CASE("directories are made through links that lead to one, and through no others") {
  const test::TempDir directory;
  fs::create_directory(directory / "disk");
  fs::create_symlink(directory / "disk", directory / "link");
  create_directories_durably(directory / "link" / "a" / "b");
  CHECK(fs::is_directory(directory / "disk" / "a" / "b"));

  fs::create_symlink(directory / "not mounted", directory / "dangling");
  const std::string link = (directory / "dangling").string();
  const std::string expected = link + ": is a link to " + (directory / "not mounted").string() +
                               ", where there is no directory; mount its disk, or make the "
                               "directory";
  CHECK_THROWS_WITH_AS(create_directories_durably(link), expected.c_str(), StorageError);
  CHECK_THROWS_WITH_AS(create_directories_durably(link + "/a"), expected.c_str(), StorageError);
  CHECK_FALSE(fs::exists(directory / "not mounted"));
}

}  // namespace llmtrain
