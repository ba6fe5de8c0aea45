// The CUDA runtime of the emulated GPU: memory, streams, events and graphs.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/emulation.hpp"

namespace simt {

namespace {

/// Threads of the host call the runtime as they like; what one of them waits for is carried out by
/// that one, while the others wait for it.
std::recursive_mutex calls;
using Lock = std::lock_guard<std::recursive_mutex>;

std::int64_t waits = 0, launches = 0;
double now_microseconds = 0;

/// Of the device's memory, in bytes.
constexpr std::size_t kMemory = std::size_t{4} << 30;
/// What cudaMalloc has given away, for cudaMemGetInfo.
std::map<const void*, std::size_t> given;
std::size_t given_bytes = 0;

/// Dynamic shared memory that kernels were allowed.
std::map<const void*, std::size_t> shared_bytes_of;
constexpr std::size_t kUnaskedShared = 44 << 10, kMostShared = 227 << 10;

/// What every call says until the device is as new, as it is after a kernel that failed.
cudaError_t sticky = cudaSuccess;

/// The calling thread's; threads begin with the first, whose memory they would take.
thread_local int current_device = 0;

/// Streams that record. Meanwhile the real runtime refuses what may wait for the device.
int capturing = 0;

}  // namespace

/// LLMTRAIN_FAKE_COPIES=early: copies between host and device are done as soon as their stream
/// comes to them, whoever waits, so that one that does not wait for launches is seen to be too
/// early. Otherwise they are as late as can be.
bool copies_are_early() {
  static const bool early = [] {
    const char* const when = std::getenv("LLMTRAIN_FAKE_COPIES");
    return when != nullptr && std::strcmp(when, "early") == 0;
  }();
  return early;
}

using Work = std::function<void()>;
using Ready = std::function<bool()>;

struct Graph {
  std::vector<Work> work;
};

/// Work that nobody has waited for.
struct Queue {
  int device = current_device;
  struct Item {
    Work run;
    /// Whether it would wait for nobody; null: it is done when somebody waits for it.
    Ready ready;
  };
  std::deque<Item> work;
  int drained = 0;  // at the moment, how often
  std::int64_t begun = 0;
  /// Of the work; events look at it whoever drains the queue.
  std::shared_ptr<std::atomic<std::int64_t>> done = std::make_shared<std::atomic<std::int64_t>>(0);
  /// What is recorded instead of queued; null outside a capture.
  std::unique_ptr<Graph> captured;

  void push(Work next, Ready ready = {}) {
    if (current_device != device) die("work for another GPU than the thread's");
    if (captured) {
      captured->work.push_back(std::move(next));
    } else {
      work.push_back({std::move(next), std::move(ready)});
    }
  }

  /// What has been queued so far, in number.
  std::int64_t end() const { return begun + static_cast<std::int64_t>(work.size()); }
  void drain() { drain_to(end()); }
  void drain_to(std::int64_t position) {
    while (begun < position) run_first();
  }
  void run_first() {
    const Item next = std::move(work.front());
    work.pop_front();
    ++begun;
    ++drained;
    next.run();
    --drained;
    ++*done;
    if (copies_are_early()) simt::run_what_is_ready();
  }
  /// What streams do of themselves on a GPU, whoever waits for which.
  void run_what_is_ready() {
    while (drained == 0 && !work.empty() && work.front().ready && work.front().ready()) run_first();
  }
};

std::vector<Queue*> queues;

struct Mark {
  Queue* queue = nullptr;
  std::shared_ptr<std::atomic<std::int64_t>> done;  // the queue's, which it may outlive
  /// Of the queue, behind what the event waits for.
  std::int64_t position = 0;
  /// When the device came to it; outlives the event.
  std::shared_ptr<double> microseconds = std::make_shared<double>(0);
};

void enqueue(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
             std::function<void()> thread) {
  const Lock lock(calls);
  if (stream == nullptr) die("a launch on the default stream");
  ++launches;
  stream->push([=, thread = std::move(thread)] {
    gridDim = grid;
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          run_block(block, shared_bytes, thread);
        }
      }
    }
    pass_time(kLaunchMicroseconds);
  });
}

void enqueue_call(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(calls);
  if (stream == nullptr) die("work on the default stream");
  ++launches;
  stream->push(std::move(work));
}
void enqueue_exchange(cudaStream_t stream, std::function<void()> work,
                      std::function<bool()> ready) {
  const Lock lock(calls);
  if (stream == nullptr) die("work on the default stream");
  ++launches;
  stream->push(std::move(work), std::move(ready));
}
void carry_out(cudaStream_t stream) {
  const Lock lock(calls);
  stream->drain();
}
void run_what_is_ready() {
  for (Queue* const queue : queues) queue->run_what_is_ready();
}
cudaError_t allow_shared(const void* kernel, int bytes) {
  const Lock lock(calls);
  if (bytes < 0 || static_cast<std::size_t>(bytes) > kMostShared) return cudaErrorInvalidValue;
  shared_bytes_of[kernel] = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}
bool may_share(const void* kernel, std::size_t bytes) {
  const Lock lock(calls);
  const auto allowed = shared_bytes_of.find(kernel);
  return bytes <= (allowed == shared_bytes_of.end() ? kUnaskedShared : allowed->second);
}
void pass_time(double microseconds) { now_microseconds += microseconds; }

void fail_device() { sticky = cudaErrorLaunchFailure; }

}  // namespace simt

extern "C" {
__attribute__((visibility("default"))) std::int64_t emulated_host_waits() { return simt::waits; }
__attribute__((visibility("default"))) std::int64_t emulated_launches() { return simt::launches; }
}

const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }
cudaError_t cudaGetLastError() { return simt::sticky; }
cudaError_t cudaGetDeviceCount(int* count) {
  const char* gpus = std::getenv("LLMTRAIN_FAKE_GPUS");
  *count = gpus != nullptr ? std::atoi(gpus) : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->totalGlobalMem = simt::kMemory;
  properties->sharedMemPerBlockOptin = 227 << 10;
  // Another compute capability than the plugin is built for.
  const char* capability = std::getenv("LLMTRAIN_FAKE_CAPABILITY");
  const int number = capability != nullptr ? std::atoi(capability) : 90;
  properties->major = number / 10;
  properties->minor = number % 10;
  properties->multiProcessorCount = 4;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = simt::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  simt::current_device = device;
  return cudaSuccess;
}
/// LLMTRAIN_FAKE_WGMMA=lost: a device that nothing makes as new.
cudaError_t cudaDeviceReset() {
  if (!simt::fakes_wgmma("lost")) simt::sticky = cudaSuccess;
  return simt::sticky;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const simt::Lock lock(simt::calls);
  *total_bytes = simt::kMemory;
  *free_bytes = simt::kMemory - std::min(simt::kMemory, simt::given_bytes);
  return cudaSuccess;
}
/// What is there is NaN, as far as tests with small tensors get.
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  const simt::Lock lock(simt::calls);
  constexpr std::size_t kPoisoned = 8 << 20;
  if (simt::sticky != cudaSuccess) return simt::sticky;
  if (simt::capturing > 0) return cudaErrorIllegalState;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, std::min(bytes, kPoisoned));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const simt::Lock lock(simt::calls);
  if (simt::capturing > 0) return cudaErrorIllegalState;
  std::free(memory);
  return simt::sticky;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  const simt::Lock lock(simt::calls);
  const cudaError_t status = cudaHostAlloc(memory, bytes, 0);
  if (status != cudaSuccess) return status;
  simt::given_bytes += simt::given[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  const simt::Lock lock(simt::calls);
  const cudaError_t status = cudaFreeHost(memory);
  if (status == cudaErrorIllegalState) return status;
  if (const auto entry = simt::given.find(memory); entry != simt::given.end()) {
    simt::given_bytes -= entry->second;
    simt::given.erase(entry);
  }
  return status;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  // It would copy what the host's memory holds when the graph is launched.
  if (stream->captured && kind != cudaMemcpyDeviceToDevice) return cudaErrorIllegalState;
  const bool is_early = simt::copies_are_early() && kind != cudaMemcpyDeviceToDevice;
  stream->push([=] { std::memmove(to, from, bytes); },
               is_early ? simt::Ready([] { return true; }) : simt::Ready());
  if (is_early) simt::run_what_is_ready();
  return simt::sticky;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  stream->push([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const simt::Lock lock(simt::calls);
  *stream = new simt::Queue;
  simt::queues.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  stream->drain();
  std::erase(simt::queues, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  if (stream->captured) return cudaErrorIllegalState;
  ++simt::waits;
  stream->drain();
  return simt::sticky;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new simt::Mark;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  // Such an event would join streams inside the graph; nobody here does that.
  if (stream->captured) return cudaErrorIllegalState;
  event->queue = stream;
  event->done = stream->done;
  stream->push([time = event->microseconds] { *time = simt::now_microseconds; },
               [] { return true; });
  event->position = stream->end();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->done == nullptr || *event->done >= event->position) return cudaSuccess;
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const simt::Lock lock(simt::calls);
  ++simt::waits;
  if (event->queue != nullptr) event->queue->drain_to(event->position);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const simt::Lock lock(simt::calls);
  if (simt::Queue* other = event->queue; other != nullptr && other != stream) {
    stream->push([other, position = event->position] { other->drain_to(position); },
                 [done = event->done, position = event->position] { return *done >= position; });
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const simt::Lock lock(simt::calls);
  if (stream->captured) return cudaErrorIllegalState;
  stream->captured = std::make_unique<simt::Graph>();
  ++simt::capturing;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const simt::Lock lock(simt::calls);
  if (!stream->captured) return cudaErrorIllegalState;
  *graph = stream->captured.release();
  --simt::capturing;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  *instance = new simt::Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  const simt::Lock lock(simt::calls);
  for (const simt::Work& work : instance->work) stream->push(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  delete instance;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>((*end->microseconds - *begin->microseconds) / 1000);
  return cudaSuccess;
}
