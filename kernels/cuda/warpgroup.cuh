#pragma once
/// The asynchronous units of sm_90a as functions: mbarriers, copies of boxes of a tensor by the
/// tensor memory accelerator, and wgmma. Only code that is compiled for sm_90a may use them; the
/// bodies of kernels are empty elsewhere (kHasWarpgroups). In tests without a GPU they follow the
/// PTX manual (tests/cuda_emulation/asynchronous.hpp): results appear when they are waited for.
///
/// A warpgroup is four warps, the first of which has a number divisible by four. Fragments of
/// wgmma.m64nNk16 are those of mma.m16n8k16 (tensor_core.cuh): warp w of the group has rows 16 w to
/// 16 w + 15 of A and of the sums, FragmentC number n columns 8 n to 8 n + 7.

#include <cuda.h>

#include "kernels/cuda/tensor_core.cuh"

#ifdef LLMTRAIN_CUDA_EMULATION
#include <asynchronous.hpp>
#endif

namespace llmtrain::kernels::cuda {

#if defined(LLMTRAIN_CUDA_EMULATION) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

inline constexpr int kWarpgroupThreads = 128;

/// Rows of an operand of wgmma lie in panels of 64 columns: 128 bytes a row, chunks of 16 bytes of
/// row r at the place of chunk ^ r % 8. So the tensor memory accelerator writes them with 128-byte
/// swizzle, if the panel begins at a multiple of kPanelAlignment.
inline constexpr int kPanelColumns = 64;
inline constexpr std::size_t kPanelAlignment = 1024;

/// The first multiple of kPanelAlignment in dynamic shared memory: ask for so many bytes more.
template <class T>
__device__ __forceinline__ T* aligned_shared();

/// An mbarrier. Phases have the parities 0, 1, 0, ..; one is over when all arrivals and all bytes
/// that it expects are there.
struct PhaseBarrier {
  std::uint64_t word;
};

/// A matrix in shared memory as wgmma reads it: 128-byte swizzle, strides in bytes between groups
/// of eight rows (`stride`) and, where columns of B are contiguous, between panels (`leading`).
__device__ __forceinline__ std::uint64_t matrix_descriptor(unsigned shared_address,
                                                           unsigned leading, unsigned stride) {
  return std::uint64_t{1} << 62 | std::uint64_t{stride >> 4} << 32 |
         std::uint64_t{leading >> 4} << 16 | (shared_address & 0x3ffffu) >> 4;
}

#ifdef LLMTRAIN_CUDA_EMULATION

inline unsigned shared_address(const void* p) { return simt::shared_address(p); }

inline void initialise(PhaseBarrier& b, unsigned arrivals) {
  simt::init_barrier(&b.word, arrivals);
}
inline void fence_initialisation() { simt::fence_barrier_init(); }
inline void arrive(PhaseBarrier& b) { simt::arrive(&b.word); }
inline void arrive_expecting(PhaseBarrier& b, unsigned bytes) { simt::arrive(&b.word, bytes); }
inline void wait_for_phase(PhaseBarrier& b, unsigned parity) {
  simt::wait_for_phase(&b.word, parity);
}
inline void sync_named(int barrier, int threads) { simt::sync_named(barrier, threads); }
inline void arrive_at_named(int barrier, int threads) { simt::arrive_at_named(barrier, threads); }

inline void copy_box(void* to, const CUtensorMap& map, int column, int head, int row, int sequence,
                     PhaseBarrier& barrier) {
  simt::copy_box(to, map, {column, head, row, sequence}, &barrier.word);
}

template <class T, bool accumulate, int N>
void multiply(FragmentC (&sums)[N], std::uint64_t a, std::uint64_t b) {
  simt::multiply({.sums = sums[0].x,
                  .columns = 8 * N,
                  .is_f16 = std::is_same_v<T, f16>,
                  .a = nullptr,
                  .a_descriptor = a,
                  .b_descriptor = b,
                  .accumulate = accumulate,
                  .b_transposed = false});
}
template <class T, int N>
void multiply_transposed(FragmentC (&sums)[N], const FragmentA& a, std::uint64_t b) {
  simt::multiply({.sums = sums[0].x,
                  .columns = 8 * N,
                  .is_f16 = std::is_same_v<T, f16>,
                  .a = a.x,
                  .a_descriptor = 0,
                  .b_descriptor = b,
                  .accumulate = true,
                  .b_transposed = true});
}
template <class... Operands>
void fence_products(Operands&...) {
  simt::fence_products();
}
inline void commit_products() { simt::commit_products(); }
template <int groups_left, class... Sums>
void wait_for_products(Sums&...) {
  simt::wait_for_products(groups_left);
}
template <int N>
void touch(FragmentC (&)[N]) {}
inline void compute_first(float, float) {}
template <int N>
void keep(const FragmentA (&)[N]) {}

template <int registers>
void release_registers() {
  simt::set_registers(registers);
}
template <int registers>
void take_registers() {
  simt::set_registers(registers);
}

#else

// ---- mbarriers

__device__ __forceinline__ void initialise(PhaseBarrier& b, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals)
               : "memory");
}
/// Behind all initialise() of a thread: copies find the barriers as they are now.
__device__ __forceinline__ void fence_initialisation() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(PhaseBarrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
/// Arrives, and the phase waits for so many bytes of copies besides.
__device__ __forceinline__ void arrive_expecting(PhaseBarrier& b, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool is_over(unsigned address, unsigned parity) {
  unsigned over;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(over)
      : "r"(address), "r"(parity)
      : "memory");
  return over != 0;
}
__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
/// Until the phase with this parity is over. Who waits for ten seconds waits in vain: the launch
/// becomes an error. It is one of an address, because a call would let no product be under way, and
/// a trap would leave all warpgroups with the registers of the fewest.
__device__ __forceinline__ void wait_for_phase(PhaseBarrier& b, unsigned parity) {
  constexpr std::uint64_t kLimit = 10'000'000'000;
  const unsigned address = shared_address(&b);
  if (is_over(address, parity)) return;
  const std::uint64_t begin = nanoseconds();
  while (!is_over(address, parity)) {
    if (nanoseconds() - begin > kLimit) {
      asm volatile("st.global.u32 [%0], %1;" ::"l"(std::uint64_t{0}), "r"(0) : "memory");
    }
  }
}

/// Barriers 1 to 15 of a block (0 is __syncthreads): `threads` count those that wait and those that
/// only arrive.
__device__ __forceinline__ void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Copies

/// By one thread: the box at these indices to shared memory, zeros where the tensor ends; its bytes
/// are counted by the barrier.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int column, int head,
                                         int row, int sequence, PhaseBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(head), "r"(row), "r"(sequence), "r"(shared_address(&barrier))
      : "memory");
}

// ---- Products

/// The compiler knows nothing of products that are under way, and may move what reads or writes
/// registers across a fence or a wait. Here it is told that these change: they are computed before.
template <int N>
__device__ __forceinline__ void touch(FragmentC (&sums)[N]) {
#pragma unroll
  for (FragmentC& c : sums) {
#pragma unroll
    for (float& x : c.x) asm volatile("" : "+f"(x)::"memory");
  }
}
template <int N>
__device__ __forceinline__ void touch(FragmentA (&a)[N]) {
#pragma unroll
  for (FragmentA& f : a) {
#pragma unroll
    for (std::uint32_t& x : f.x) asm volatile("" : "+r"(x)::"memory");
  }
}
/// These are computed before what follows, although the assembler likes to wait for products first:
/// an instruction that does nothing, and for NaN alone, must see them.
__device__ __forceinline__ void compute_first(float x, float y) {
  asm volatile("{\n.reg .pred p;\nsetp.nan.f32 p, %0, %1;\n@p nanosleep.u32 0;\n}" ::"f"(x), "f"(y)
               : "memory");
}
/// Registers of A may be read until here.
template <int N>
__device__ __forceinline__ void keep(const FragmentA (&a)[N]) {
#pragma unroll
  for (const FragmentA& f : a) {
#pragma unroll
    for (const std::uint32_t& x : f.x) asm volatile("" ::"r"(x) : "memory");
  }
}

#define LLMTRAIN_SUMS(n) \
  "+f"(sums[n].x[0]), "+f"(sums[n].x[1]), "+f"(sums[n].x[2]), "+f"(sums[n].x[3])
#define LLMTRAIN_SUMS_8(n)                                                            \
  LLMTRAIN_SUMS(n), LLMTRAIN_SUMS(n + 1), LLMTRAIN_SUMS(n + 2), LLMTRAIN_SUMS(n + 3), \
      LLMTRAIN_SUMS(n + 4), LLMTRAIN_SUMS(n + 5), LLMTRAIN_SUMS(n + 6), LLMTRAIN_SUMS(n + 7)
#define LLMTRAIN_PLACES_32                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMTRAIN_PLACES_64                                                             \
  LLMTRAIN_PLACES_32                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define LLMTRAIN_MULTIPLY_64(type)                                                        \
  asm volatile(                                                                           \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" LLMTRAIN_PLACES_32 \
      "}, %32, %33, p, 1, 1, 0, 0;\n}"                                                    \
      : LLMTRAIN_SUMS_8(0)                                                                \
      : "l"(a), "l"(b), "n"(accumulate ? 1 : 0))
#define LLMTRAIN_MULTIPLY_128(type)                                                        \
  asm volatile(                                                                            \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                         \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LLMTRAIN_PLACES_64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                                     \
      : LLMTRAIN_SUMS_8(0), LLMTRAIN_SUMS_8(8)                                             \
      : "l"(a), "l"(b), "n"(accumulate ? 1 : 0))
/// sums = a b^T, or += with `accumulate`: both operands K-major, by descriptors, of T.
template <class T, bool accumulate, int N>
__device__ __forceinline__ void multiply(FragmentC (&sums)[N], std::uint64_t a, std::uint64_t b) {
  static_assert(N == 8 || N == 16);
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  if constexpr (N == 8 && kIsBf16) LLMTRAIN_MULTIPLY_64("bf16");
  if constexpr (N == 8 && !kIsBf16) LLMTRAIN_MULTIPLY_64("f16");
  if constexpr (N == 16 && kIsBf16) LLMTRAIN_MULTIPLY_128("bf16");
  if constexpr (N == 16 && !kIsBf16) LLMTRAIN_MULTIPLY_128("f16");
}
#undef LLMTRAIN_MULTIPLY_64
#undef LLMTRAIN_MULTIPLY_128

#define LLMTRAIN_MULTIPLY_64(type)                                                        \
  asm volatile(                                                                           \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" LLMTRAIN_PLACES_32 \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"                                      \
      : LLMTRAIN_SUMS_8(0)                                                                \
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b))
#define LLMTRAIN_MULTIPLY_128(type)                                                        \
  asm volatile(                                                                            \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LLMTRAIN_PLACES_64 \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"                                       \
      : LLMTRAIN_SUMS_8(0), LLMTRAIN_SUMS_8(8)                                             \
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b))
/// sums += a b, where rows of b are steps of summation (MN-major); elements are T.
template <class T, int N>
__device__ __forceinline__ void multiply_transposed(FragmentC (&sums)[N], const FragmentA& a,
                                                    std::uint64_t b) {
  static_assert(N == 8 || N == 16);
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  if constexpr (N == 8 && kIsBf16) LLMTRAIN_MULTIPLY_64("bf16");
  if constexpr (N == 8 && !kIsBf16) LLMTRAIN_MULTIPLY_64("f16");
  if constexpr (N == 16 && kIsBf16) LLMTRAIN_MULTIPLY_128("bf16");
  if constexpr (N == 16 && !kIsBf16) LLMTRAIN_MULTIPLY_128("f16");
}
#undef LLMTRAIN_MULTIPLY_64
#undef LLMTRAIN_MULTIPLY_128
#undef LLMTRAIN_SUMS
#undef LLMTRAIN_SUMS_8
#undef LLMTRAIN_PLACES_32
#undef LLMTRAIN_PLACES_64

/// Before the first product of a group: what was written to its registers, `operands`, is there.
template <class... Operands>
__device__ __forceinline__ void fence_products(Operands&... operands) {
  (touch(operands), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most so many groups of this warp are under way; `sums` are those that may be used then.
template <int groups_left, class... Sums>
__device__ __forceinline__ void wait_for_products(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
  (touch(sums), ...);
}

/// The four warps of a warpgroup have so many registers a thread from here on.
template <int registers>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

#endif

template <class T>
__device__ __forceinline__ T* aligned_shared() {
  static_assert(alignof(T) <= kPanelAlignment);
  auto* const bytes = dynamic_shared<unsigned char>();
  const unsigned behind = shared_address(bytes) % kPanelAlignment;
  return reinterpret_cast<T*>(bytes + (kPanelAlignment - behind) % kPanelAlignment);
}

}  // namespace llmtrain::kernels::cuda
