#pragma once
/// Bytes for files that tests write and read back.

#include <cstddef>
#include <random>
#include <string>

namespace llmtrain::test {

/// The same each time, others for each `count`.
inline std::string random_bytes(std::size_t count) {
  std::mt19937 random(count);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace llmtrain::test
