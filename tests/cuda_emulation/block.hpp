#pragma once
/// What the parts of the emulated GPU need of each other: the runtime (runtime.cpp), the block that
/// runs (emulation.cpp) and the asynchronous units of sm_90 (asynchronous.cpp, products.cpp).

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <functional>
#include <string_view>

#include "tests/cuda_emulation/emulation.hpp"

namespace simt {

[[noreturn]] void die(const char* what);

void run_block(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);

/// Lets other threads go on until `condition` holds.
void wait_until(const std::function<bool()>& condition);

/// Shared memory as its own address space: addresses count from `data`.
struct SharedWindow {
  std::byte* data;
  std::size_t bytes;
};
SharedWindow shared_window();
std::size_t thread_of_block();
Order order();

/// Where 128-byte swizzle has what an address names: bits 4 to 6 change with bits 7 to 9.
constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

/// Before and after a block. What is still under way at its end is an error.
void begin_asynchronous();
void end_asynchronous();
/// Completes one of the copies under way; false where there is none.
bool land_one_copy();
void begin_products();
void end_products();

/// Whether the environment variable LLMTRAIN_FAKE_WGMMA asks for a GPU of this mode: "wrong" whose
/// products are not what this project believes ("wrong-fp16": those of fp16), "fails" whose
/// launches fail, "lost" that does not recover from that, "undescribed" whose driver describes no
/// tensors.
bool fakes_wgmma(std::string_view mode);
/// From here on calls fail.
void fail_device();

}  // namespace simt
