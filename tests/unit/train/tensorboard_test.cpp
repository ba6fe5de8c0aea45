#include "lib/train/tensorboard.hpp"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// Written by the Python package tensorboard 2.21.0: RecordWriter over event_pb2.Event.
constexpr double kWallTime = 1700000000.25;
constexpr std::string_view kVersion =
    "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";
constexpr std::string_view kScalar =
    "2100000000000000017becf60900001040fc54d94110ac022a130a110a0a747261696e2f6c6f73731500002040"
    "8dabcc7d";
constexpr std::string_view kSession =
    "100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b";
constexpr std::string_view kSession128 =
    "100000000000000095fbfe180900001040fc54d9411080013a020801d259aaff";
constexpr std::string_view kText =
    "34000000000000005e33175c0900001040fc54d94110ac022a260a240a0673616d706c65420e08071200420869"
    "6620287829207b4a0a0a060a0474657874200293f5dc0a";

/// Payloads of the records, by their length words.
std::vector<std::string> payloads(const std::string& file) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < file.size();) {
    REQUIRE(file.size() >= at + 16);
    const auto size = static_cast<unsigned char>(file[at]);  // all records here are short
    found.push_back(file.substr(at + 12, size));
    at += 16 + size;
  }
  return found;
}

}  // namespace

TEST_CASE("event records equal those of the tensorboard package byte for byte") {
  CHECK(tensorboard::version_record(kWallTime) == from_hex(kVersion));
  CHECK(tensorboard::scalar_record(kWallTime, 300, "train/loss", 2.5f) == from_hex(kScalar));
  CHECK(tensorboard::session_start_record(kWallTime, 301) == from_hex(kSession));
  CHECK(tensorboard::session_start_record(kWallTime, 128) == from_hex(kSession128));
  CHECK(tensorboard::text_record(kWallTime, 300, "sample", "if (x) {") == from_hex(kText));
}

TEST_CASE("an event file opens with its version, then a session that purges what comes after") {
  const test::TempDir dir;

  TensorBoardWriter writer(dir.path() / "tb", 300);

  const std::vector<std::string> records = payloads(read_file(writer.path()));
  REQUIRE(records.size() == 2);
  CHECK(records[0].find("brain.Event:2") != std::string::npos);
  // Step 300: TensorBoard keeps events whose step is below that of the START event.
  CHECK(records[1].substr(9) == from_hex("10ac023a020801"));
}

TEST_CASE("numbers of a record become scalars, strings do not, and flush alone writes") {
  const test::TempDir dir;
  TensorBoardWriter writer(dir.path(), std::nullopt);
  StepRecord record{.step = 1, .fields = {}};
  record.set("train/loss", 2.5);
  record.set("train/tokens", std::int64_t{8});
  record.set("run/note", "text");

  writer.add(record);
  CHECK(payloads(read_file(writer.path())).size() == 2);
  writer.flush();

  const std::vector<std::string> records = payloads(read_file(writer.path()));
  REQUIRE(records.size() == 4);
  CHECK(records[2].ends_with(from_hex("0a0a747261696e2f6c6f73731500002040")));
  CHECK(records[3].find("train/tokens") != std::string::npos);
}

TEST_CASE("figures of one tensor of many stay in the file of metrics") {
  const test::TempDir dir;
  TensorBoardWriter writer(dir.path(), std::nullopt);
  StepRecord record{.step = 1, .fields = {}};
  record.set("gradient/amax/model.norm.weight", 2.5);
  record.set("gradient/amax", 2.5);
  writer.add(record);
  writer.flush();
  CHECK(payloads(read_file(writer.path())).size() == 3);  // the version, the start, and one
}

TEST_CASE("a restarted run's event file sorts behind the earlier one") {
  const test::TempDir dir;
  const std::filesystem::path late = dir / "events.out.tfevents.9000000000.zz.1.0";
  File::create_new(late).write("");

  TensorBoardWriter first(dir.path(), std::nullopt);
  TensorBoardWriter second(dir.path(), std::nullopt);

  CHECK(first.path() > late);
  CHECK(second.path() > first.path());
}

}  // namespace llmtrain::train
