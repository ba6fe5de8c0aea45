#include "lib/checkpoint/stored_read.hpp"

#include <doctest/doctest.h>

namespace llmtrain::checkpoint {

TEST_CASE("storage that fails for a moment is read again, twice at most; nothing else is") {
  int tries = 0, pauses = 0;
  const auto pause = [&] { ++pauses; };
  const auto fails_until = [&](int good) {
    tries = pauses = 0;
    return [&tries, good] {
      if (++tries < good) fail<StorageError>("read {} fails", tries);
      return tries;
    };
  };
  CHECK(read_patiently(fails_until(1), pause) == 1);
  CHECK(pauses == 0);
  CHECK(read_patiently(fails_until(3), pause) == 3);
  CHECK(pauses == 2);
  CHECK_THROWS_WITH_AS(read_patiently(fails_until(4), pause), "read 3 fails", StorageError);
  CHECK(tries == 3);

  tries = 0;
  const auto is_damaged = [&]() -> int { fail<CheckpointError>("damaged at try {}", ++tries); };
  CHECK_THROWS_WITH_AS(read_patiently(is_damaged), "damaged at try 1", CheckpointError);
  const auto is_given_up = [&]() -> int { fail<GivenUp>("given up at try {}", ++tries); };
  CHECK_THROWS_WITH_AS(read_patiently(is_given_up), "given up at try 2", GivenUp);
  const auto stop = [] { fail<DataError>("asked to stop"); };
  CHECK_THROWS_WITH_AS(read_patiently(fails_until(3), stop), "asked to stop", DataError);
  CHECK(tries == 1);
}

}  // namespace llmtrain::checkpoint
