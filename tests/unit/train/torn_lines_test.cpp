#include "lib/train/torn_lines.hpp"

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/starts.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; ++at) ++found;
  return found;
}

}  // namespace

TEST_CASE("lines that are none go beside the file, and one warning names the first") {
  const test::TempDir dir;
  log::open_file(dir / "log");
  const auto file = dir / "lines";
  const auto keep = [&] {
    keep_lines(file, [](std::string_view line, std::size_t number) {
      require<DataError>(!line.starts_with("bad"), "lines:{}: bad", number);
      return line != "drop";
    });
  };
  keep();
  CHECK(!std::filesystem::exists(file));
  write_file_atomic(file, "one\ntwo\n");
  const auto written = std::filesystem::last_write_time(file);
  keep();
  CHECK(std::filesystem::last_write_time(file) == written);
  CHECK(read_file(dir / "log").empty());
  write_file_atomic(file, "one\nbad 1\ndrop\n\nbad 2\nfive\nunfinish");
  keep();
  CHECK(read_file(file) == "one\n\nfive\n");
  CHECK(read_file(dir / "lines.torn") == "bad 1\nbad 2\n");
  const std::string said = read_file(dir / "log");
  CAPTURE(said);
  CHECK(count(said, "warning: ") == 1);
  CHECK(said.find("lines:2: bad; the line and 1 more are now in ") != std::string::npos);
}

TEST_CASE("damaged starts, samples and incidents stop no start") {
  const test::TempDir dir;
  log::open_file(dir / "log");
  const Start start{.time = 1.5, .host = "n1", .pid = 7};
  write_file_atomic(dir / "starts.jsonl", "{\"time\":1}\n" + to_line(start) + "\n");
  CHECK_THROWS_WITH_AS(read_starts(dir.path()), doctest::Contains("starts.jsonl:1: not a start"),
                       DataError);
  CHECK(keep_starts(dir.path()) == std::vector<Start>{start});
  CHECK(read_starts(dir.path()).size() == 1);

  const auto sample = [](int step) {
    return fmt::format("{{\"step\":{},\"prompt\":\"p\",\"text\":\"t\"}}\n", step);
  };
  write_file_atomic(dir / "samples.jsonl", "\x1b\n" + sample(2) + "[]\n" + sample(4) + sample(6));
  CHECK(keep_samples(dir.path(), 4).size() == 1);
  CHECK(read_file(dir / "samples.jsonl") == sample(2) + sample(4));
  CHECK(read_file(dir / "samples.jsonl.torn") == "\x1b\n[]\n");

  write_file_atomic(dir / "incidents.jsonl", "{\"step\":3}\nnone\n{\"step\":5}\n");
  keep_incidents(dir.path());
  CHECK(read_file(dir / "incidents.jsonl") == "{\"step\":3}\n{\"step\":5}\n");
  const std::string said = read_file(dir / "log");
  CAPTURE(said);
  CHECK(said.find('\x1b') == std::string::npos);
  for (const char* part : {"starts.jsonl:1: not a start", "samples.jsonl:1: not a sample",
                           "incidents.jsonl:2: not a JSON object"}) {
    CAPTURE(part);
    CHECK(count(said, part) == 1);
  }
}

}  // namespace llmtrain::train
