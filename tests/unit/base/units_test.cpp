#include "lib/base/units.hpp"

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("parse_count reads decimal and binary suffixes and refuses everything else") {
  CHECK(parse_count("64") == 64u);
  CHECK(parse_count("3_000") == 3000u);
  CHECK(parse_count("20B") == 20'000'000'000u);
  CHECK(parse_count("1.5k") == 1500u);
  CHECK(parse_count("4Ki") == 4096u);
  for (const char* bad : {"", "k", "-1", "1.0001", "1e30", "12 apples", "1..2", "99999999999T"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_count(bad).has_value());
  }
}

TEST_CASE("parse_bytes and parse_duration read their units") {
  CHECK(parse_bytes("16GiB") == std::uint64_t{16} << 30);
  CHECK(parse_bytes("512MB") == 512'000'000u);
  CHECK(parse_duration("23h30m") == 84600.0);
  CHECK(parse_duration("90") == 90.0);
  CHECK_FALSE(parse_duration("5 parsecs").has_value());
  CHECK_FALSE(parse_bytes("12 tok").has_value());
}

}  // namespace llmtrain
