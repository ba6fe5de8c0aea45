#include "lib/base/directory.hpp"

#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/activity.hpp"
#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
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

TEST_CASE("who removes a directory tells at each entry that it gets on, and follows no link") {
  const test::TempDir directory;
  const fs::path tree = directory / "tree";
  fs::create_directories(tree / "inner" / "most");
  fs::create_directory(directory / "other");
  fs::create_symlink(directory / "other", tree / "link");
  for (const char* name : {"a", "b", "c"}) write_file_atomic(tree / name, name);
  const std::uint64_t before = activity::ticks();
  remove_tree(tree);
  CHECK(activity::ticks() >= before + 5);
  CHECK_FALSE(fs::exists(tree));
  CHECK(fs::exists(directory / "other"));
  remove_tree(tree);  // which is gone

  fs::create_symlink(directory / "other", directory / "link");
  remove_tree(directory / "link");
  CHECK(fs::exists(directory / "other"));
  CHECK_FALSE(fs::exists(fs::symlink_status(directory / "link")));
}

}  // namespace llmtrain
