// What a rank leaves in a file while it waits for another one.
#include "lib/train/signs_of_life.hpp"

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/thread_transport.hpp"

namespace llmtrain::train {

TEST_CASE("a sign of life tells for whom its rank waits, and that it waits for nobody") {
  const test::TempDir run;
  std::string waiting, awake;
  testing::run_job(2, [&](Transport& transport) {
    World world(transport);
    const Peers peers(world, "recipe");
    SignsOfLife signs(peers, run.path());
    const auto told = [&] {
      signs.give();
      std::istringstream text(read_file(run.path() / "logs" / "rank-0.alive"));
      std::string number, whom;
      text >> number >> whom;
      return whom;
    };
    if (world.place().rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      peers.barrier("late");
      return;
    }
    std::thread watch([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
      waiting = told();
    });
    peers.barrier("late");
    watch.join();
    awake = told();
  });
  CHECK(waiting == "1");
  CHECK(awake == "-1");
}

}  // namespace llmtrain::train
