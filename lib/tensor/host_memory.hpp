#pragma once
/// What all memory has in common that the processor reads and writes itself.

#include <cstring>

#include "lib/tensor/device.hpp"

namespace llmtrain {

/// Copies are the processor's; whose memory it is, the derived class says.
class HostMemory : public MemoryBackend {
 public:
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override {
    std::memmove(to, from, bytes);
  }
};

}  // namespace llmtrain
