#pragma once
/// Safetensors files spelled out, good and bad.

#include <cstdint>
#include <string>

namespace llmtrain::checkpoint {

/// In the format's byte order, which is this machine's.
inline std::string u64(std::uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// With the right length in front, and `data_bytes` bytes 'd' behind.
inline std::string file_of(const std::string& header, std::size_t data_bytes) {
  return u64(header.size()) + header + std::string(data_bytes, 'd');
}

/// A header with a tensor "t".
inline std::string one_tensor(const std::string& entry) { return "{\"t\":{" + entry + "}}"; }

}  // namespace llmtrain::checkpoint
