#include "lib/train/device.hpp"

#include <doctest/doctest.h>

namespace llmtrain::train {

TEST_CASE("ranks of a machine take its GPUs in turn, and share them where they are more") {
  const auto share = [](int local_rank, int local_size, int gpus) {
    // Of any number of machines.
    return share_of_gpus(
        {.rank = 100 + local_rank, .size = 200, .local_rank = local_rank, .local_size = local_size},
        gpus);
  };
  CHECK(share(0, 1, 1).gpu == 0);
  CHECK(share(0, 1, 8).ranks == 1);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(share(rank, 4, 4).gpu == rank);
    CHECK(share(rank, 4, 4).ranks == 1);
    CHECK(share(rank, 4, 1).gpu == 0);
    CHECK(share(rank, 4, 1).ranks == 4);
  }
  // Five on two: 0, 2 and 4 have the first.
  CHECK(share(4, 5, 2).gpu == 0);
  CHECK(share(4, 5, 2).ranks == 3);
  CHECK(share(3, 5, 2).gpu == 1);
  CHECK(share(3, 5, 2).ranks == 2);
}

}  // namespace llmtrain::train
