#pragma once
/// The part of the CUDA runtime and of device code that kernels/cuda uses, carried out on the CPU,
/// so that the very sources of the kernels run in tests on machines without a GPU. It shows errors
/// of logic (indices, masks, orders, races between threads of a block, missing waits), not those of
/// the hardware: speed, memory models across blocks, limits of registers.
///
/// Streams are queues that nothing empties before somebody waits; threads of a block are fibers
/// that run, in an order of choice, up to their next barrier; blocks run one after another.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- The runtime -------------------------------------------------------------------------------

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;

namespace simt {
struct Queue;
struct Mark;
struct Graph;
/// Dynamic shared memory of a kernel, of which more must be allowed than it may have unasked. What
/// kernels declare themselves nobody counts here: each is believed to have 4 KiB of it.
cudaError_t allow_shared(const void* kernel, int bytes);
bool may_share(const void* kernel, std::size_t bytes);
}  // namespace simt
using cudaStream_t = simt::Queue*;
using cudaEvent_t = simt::Mark*;
using cudaGraph_t = simt::Graph*;
using cudaGraphExec_t = simt::Graph*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, l2CacheSize;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceReset();
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance);
cudaError_t cudaGetLastError();
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
inline constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result);
template <class F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute, int bytes) {
  return simt::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

namespace simt {

/// Puts a launch at the end of the queue.
void enqueue(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
             std::function<void()> thread);

}  // namespace simt

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  if (!simt::may_share(reinterpret_cast<const void*>(kernel), config->dynamicSmemBytes)) {
    return cudaErrorInvalidValue;
  }
  std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
  simt::enqueue(config->stream, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                [kernel, values = std::move(values)] { std::apply(kernel, values); });
  return cudaSuccess;
}

// ---- Device code -------------------------------------------------------------------------------

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace simt {

void* dynamic_shared();
/// Ends the program: a thread's access begins at no multiple of its bytes.
void misaligned();
/// The calling thread's lane exchanges 16 bytes with the lanes of `mask`: returns everybody's.
struct Lanes {
  std::array<std::array<std::byte, 32>, 32> bytes;
};
const Lanes& exchange(unsigned mask, const void* value, std::size_t bytes);
int lane();

template <class T>
T of_lane(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 32);
  T result;
  std::memcpy(&result,
              exchange(mask, &value, sizeof(T)).bytes[static_cast<std::size_t>(from)].data(),
              sizeof(T));
  return result;
}

}  // namespace simt

void __syncthreads();
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  const char nothing = 0;
  simt::exchange(mask, &nothing, 1);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = simt::lane();
  return simt::of_lane(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int = 32) {
  return simt::of_lane(mask, value, simt::lane() ^ bits);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = simt::lane();
  const int from = lane + static_cast<int>(delta);
  return simt::of_lane(mask, value, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = simt::lane();
  const int from = lane - static_cast<int>(delta);
  return simt::of_lane(mask, value, from >= (lane & ~(width - 1)) ? from : lane);
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
/// Threads take turns: nobody comes between.
template <class T>
T atomicMax(T* to, T value) {
  T before;
  std::memcpy(&before, to, sizeof(T));
  if (before < value) std::memcpy(to, &value, sizeof(T));
  return before;
}
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  return before;
}
using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}
inline std::uint32_t __float_as_uint(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline float __uint_as_float(std::uint32_t x) { return __builtin_bit_cast(float, x); }
