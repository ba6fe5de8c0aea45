// Activations of a device in a file of its host: the same values, whenever copies are carried out,
// and memory as planned.
#include "lib/engine/file_shelf.hpp"

#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/engine/activation_rig.hpp"

namespace llmtrain::engine {

namespace {

using testing::LazyMemory;

constexpr std::uint64_t kBlock = offload::ValueStore::kBlock;
constexpr std::int64_t kUnit = 70'001;  // elements: a block of the file, and a bit of the next one

/// What is there before the file, and longer.
struct Scratch {
  test::TempDir directory;
};

/// Through a pool of four blocks, where a block of the model saves nine and more.
class Rig : private Scratch, public ActivationRig {
 public:
  explicit Rig(std::optional<LazyMemory::Copying> copying, bool checksums = true)
      : ActivationRig(
            copying,
            [&](Device& of) {
              return std::make_unique<FileShelf>(
                  of, ActivationOffloadOptions{.buffer_bytes = 4 * kBlock + 1,
                                               .checksums = checksums,
                                               .directory = directory.path()});
            },
            kUnit) {}
  DeviceActivationFacts facts() const { return activations.shelf().facts(); }

  /// The file, which has no name.
  std::filesystem::path file() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto to = std::filesystem::read_symlink(entry.path(), gone);
      if (!gone && to.string().starts_with(directory.path().string() + "/")) return entry.path();
    }
    return {};
  }
  std::uint64_t file_size() const {
    struct stat status = {};
    REQUIRE(::stat(file().c_str(), &status) == 0);
    return static_cast<std::uint64_t>(status.st_size);
  }
};

constexpr LazyMemory::Copying kCopying[] = {LazyMemory::Copying::late, LazyMemory::Copying::early};

}  // namespace

TEST_CASE("activations come back from a file of the host as they went") {
  for (const Program& program : kPrograms) {
    for (const auto copying : kCopying) {
      Rig rig(copying);
      for (int step = 0; step < 2; ++step) program(rig);
      rig.device.synchronize();
      CAPTURE(&program - kPrograms.data());
      CAPTURE(static_cast<int>(copying));
      CHECK(rig.reads == 2 * 3 * 5 * kMicroBatches);
      CHECK(rig.wrong == 0);
      CHECK(rig.held() == 0);
      CHECK(rig.activations.shelf().held_bytes() == 0);
      const auto traffic = rig.activations.shelf().traffic();
      REQUIRE(traffic.has_value());
      CHECK(traffic->read_bytes > 0);
      CHECK(traffic->written_bytes <= rig.facts().down_bytes);
    }
  }
}

TEST_CASE("a GPU's file is no longer than planned, and the device's memory is as on the host") {
  for (const Program& program : kPrograms) {
    Rig meta(std::nullopt), rig(LazyMemory::Copying::late);
    const auto step = [&](Rig& of) {
      program(of);
      of.forward(0);  // which nobody takes
      for (int b = 0; b < of.num_blocks; ++b) of.ways(0, b).clear();
    };
    step(meta);
    step(rig);
    const DeviceActivationFacts plan = meta.facts();
    CHECK(rig.device.ledger().stop_trace() == meta.device.ledger().stop_trace());
    CHECK(rig.facts().down_bytes == plan.down_bytes);
    CHECK(rig.facts().up_bytes == plan.up_bytes);
    CHECK(meta.activations.shelf().pinned_bytes() == 0);
    CHECK_FALSE(meta.activations.shelf().traffic().has_value());
    for (int more = 0; more < 2; ++more) step(rig);
    rig.device.synchronize();
    CHECK(rig.wrong == 0);
    CHECK(rig.facts().file_bytes == plan.file_bytes);
    CHECK(rig.facts().pinned_bytes == plan.pinned_bytes);
    // It grows by 64 blocks, or an eighth.
    CHECK(rig.file_size() <= plan.file_bytes + plan.file_bytes / 8 + 64 * kBlock);
  }
}

TEST_CASE("a file that is changed under a GPU's activations is found, and stays lost") {
  Rig rig(LazyMemory::Copying::late);
  rig.forward(0);
  rig.forward(1);
  // With the way back of the last block what was put away is in the file, but for the pool.
  rig.backward(1, 4);
  const int file = ::open(rig.file().c_str(), O_WRONLY);
  REQUIRE(file >= 0);
  const std::vector<char> zeros(rig.file_size());
  REQUIRE(::pwrite(file, zeros.data(), zeros.size(), 0) == static_cast<ssize_t>(zeros.size()));
  ::close(file);
  std::string message;
  try {
    for (int b = 3; b >= 0; --b) rig.backward(1, b);
  } catch (const StorageError& error) {
    message = error.what();
  }
  CHECK(message.find("are not what was written there") != std::string::npos);
  CHECK(message.find("has changed saved") != std::string::npos);
  CHECK_THROWS_AS(rig.backward(0), StorageError);
  for (int m = 0; m < 2; ++m) {
    for (int b = 0; b < rig.num_blocks; ++b) rig.ways(m, b).clear();
  }
  CHECK(rig.held() == 0);
}

}  // namespace llmtrain::engine
