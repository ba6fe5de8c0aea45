#pragma once
/// The asynchronous units of sm_90 as kernels/cuda/warpgroup.cuh uses them, after the PTX manual:
/// mbarriers, copies by the tensor memory accelerator, and products of warpgroups. Results appear
/// when they are waited for and not before, and what must not be touched meanwhile is NaN.

#include <cstddef>
#include <cstdint>
#include <cuda.h>

namespace simt {

/// An address in shared memory's own space, as the hardware sees it.
std::uint32_t shared_address(const void* p);

// ---- mbarrier: 64 bits in shared memory
void init_barrier(std::uint64_t* barrier, unsigned arrivals);
/// fence.mbarrier_init: without it a copy may find the barrier as it was before.
void fence_barrier_init();
/// arrive.expect_tx; without bytes, arrive.
void arrive(std::uint64_t* barrier, unsigned bytes = 0);
/// Until the phase with this parity is over.
void wait_for_phase(std::uint64_t* barrier, unsigned parity);

// ---- bar.sync and bar.arrive with a number
void sync_named(int barrier, int threads);
void arrive_at_named(int barrier, int threads);

// ---- cp.async.bulk.tensor of four dimensions, the swizzle of the map
void copy_box(void* to, const CUtensorMap& map, const int (&at)[4], std::uint64_t* barrier);

// ---- wgmma.mma_async.m64nNk16 of bf16 or f16: `sums` has columns / 2 elements of the calling
// thread; `a` is four registers of A, or null for a descriptor.
struct WarpgroupProduct {
  float* sums;
  int columns;
  bool is_f16;
  const std::uint32_t* a;
  std::uint64_t a_descriptor, b_descriptor;
  bool accumulate, b_transposed;
};
void multiply(const WarpgroupProduct& product);
void fence_products();
void commit_products();
void wait_for_products(int groups_left);

/// setmaxnreg: what warpgroups ask for must be there.
void set_registers(int registers);

}  // namespace simt
