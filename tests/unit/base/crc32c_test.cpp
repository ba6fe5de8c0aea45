#include "lib/base/crc32c.hpp"

#include <string>

#include <doctest/doctest.h>

namespace llmtrain {

TEST_CASE("crc32c gives the known answers of RFC 3720 and of the nine digits") {
  CHECK(crc32c("") == 0u);
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[static_cast<std::size_t>(i)] = static_cast<char>(i);
  CHECK(crc32c(ascending) == 0x46DD794Eu);
}

}  // namespace llmtrain
