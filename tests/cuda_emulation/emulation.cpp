#include "tests/cuda_emulation/emulation.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cuda_emulation/fiber.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kMaxThreads = 1024;
constexpr unsigned kWarp = 32;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s (block %u,%u,%u thread %u,%u,%u)\n", what, blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  std::abort();
}

/// LLMTRAIN_SIMT_ORDER, so that a whole program of tests can run in another order.
Order order_of_environment() {
  const char* const order = std::getenv("LLMTRAIN_SIMT_ORDER");
  if (order == nullptr || std::strcmp(order, "ascending") == 0) return Order::ascending;
  if (std::strcmp(order, "descending") == 0) return Order::descending;
  if (std::strcmp(order, "shuffled") == 0) return Order::shuffled;
  std::fprintf(stderr, "emulated GPU: unknown LLMTRAIN_SIMT_ORDER %s\n", order);
  std::abort();
}

/// What a thread waits for: nothing, the block, or some lanes of its warp.
enum class Wait : std::uint8_t { none, block, warp, over };

struct Fiber {
  Context context;
  std::unique_ptr<std::byte[]> stack;
  Wait wait = Wait::none;
  unsigned mask = 0;  // of the lanes waited for
  uint3 index{};
  int predicate = 0;
  std::array<std::byte, 32> offered{};  // to the other lanes
  const Lanes* received = nullptr;
};

/// What groups of lanes exchanged. All threads that can go on do so before more groups are
/// released, so that as many results as there are lanes suffice.
struct Warp {
  std::array<Lanes, kWarp> results;
  std::size_t next = 0;
};

class Block {
 public:
  void run(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);
  void wait_for_block();
  int predicates() const { return predicates_; }
  const Lanes& exchange(unsigned mask, const void* value, std::size_t bytes);
  Fiber& current() { return fibers_[now_]; }
  void* shared() { return shared_.data() + aligned_; }
  unsigned lane() const { return static_cast<unsigned>(now_ % kWarp); }
  void set_order(Order order) { order_ = order; }

 private:
  static void enter();
  void resume(std::size_t i);
  void yield() { switch_stacks(fibers_[now_].context, scheduler_); }
  bool release_block();
  bool release_warp(std::size_t warp);
  std::vector<std::size_t> turns();

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  std::size_t aligned_ = 0;
  Context scheduler_;
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0, now_ = 0;
  int predicates_ = 0;
  Order order_ = order_of_environment();
  std::mt19937 random_{7};
};

Block the_block;

void Block::enter() {
  (*the_block.thread_)();
  the_block.current().wait = Wait::over;
  the_block.yield();
}

void Block::resume(std::size_t i) {
  now_ = i;
  threadIdx = fibers_[i].index;
  fibers_[i].wait = Wait::none;
  switch_stacks(scheduler_, fibers_[i].context);
}

std::vector<std::size_t> Block::turns() {
  std::vector<std::size_t> order(count_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order_ == Order::descending) std::reverse(order.begin(), order.end());
  if (order_ == Order::shuffled) std::shuffle(order.begin(), order.end(), random_);
  return order;
}

void Block::run(dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  count_ = std::size_t{block.x} * block.y * block.z;
  if (count_ == 0 || count_ > kMaxThreads) die("a block of 0 or of more than 1,024 threads");
  thread_ = &thread;
  blockDim = block;
  if (fibers_.size() < count_) fibers_.resize(count_);
  warps_.resize((count_ + kWarp - 1) / kWarp);
  shared_.assign(shared_bytes + 256, std::byte{0xff});
  aligned_ = 256 - reinterpret_cast<std::uintptr_t>(shared_.data()) % 256;
  for (std::size_t i = 0; i < count_; ++i) {
    Fiber& fiber = fibers_[i];
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
    prepare(fiber.context, fiber.stack.get(), kStackBytes, &Block::enter);
    fiber.wait = Wait::none;
    fiber.predicate = 0;
    const auto n = static_cast<unsigned>(i);
    fiber.index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
  }
  for (;;) {
    bool progress = false;
    for (const std::size_t i : turns()) {
      if (fibers_[i].wait != Wait::none) continue;
      resume(i);
      progress = true;
    }
    if (progress) continue;
    for (std::size_t w = 0; w < warps_.size(); ++w) progress |= release_warp(w);
    if (!progress) progress = release_block();
    if (progress) continue;
    const bool over = std::all_of(fibers_.begin(), fibers_.begin() + static_cast<long>(count_),
                                  [](const Fiber& f) { return f.wait == Wait::over; });
    if (over) return;
    die("threads wait for others that never come: a barrier inside a branch, or a wrong mask");
  }
}

bool Block::release_block() {
  std::size_t waiting = 0;
  predicates_ = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (fibers_[i].wait == Wait::warp) return false;
    if (fibers_[i].wait != Wait::block) continue;
    ++waiting;
    predicates_ += fibers_[i].predicate != 0;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    if (fibers_[i].wait == Wait::block) fibers_[i].wait = Wait::none;
  }
  return waiting > 0;
}

bool Block::release_warp(std::size_t warp) {
  bool released = false;
  const std::size_t first = warp * kWarp;
  for (std::size_t i = first; i < std::min(first + kWarp, count_); ++i) {
    if (fibers_[i].wait != Wait::warp) continue;
    const unsigned mask = fibers_[i].mask;
    bool complete = true;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) == 0) continue;
      if (first + l >= count_) die("a warp's mask names lanes that the block does not have");
      const Fiber& other = fibers_[first + l];
      complete &= other.wait == Wait::warp && other.mask == mask;
    }
    if (!complete) continue;
    Lanes& result = warps_[warp].results[warps_[warp].next++ % kWarp];
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) == 0) continue;
      Fiber& other = fibers_[first + l];
      result.bytes[l] = other.offered;
      other.received = &result;
      other.wait = Wait::none;
    }
    released = true;
  }
  return released;
}

void Block::wait_for_block() {
  current().wait = Wait::block;
  yield();
}

const Lanes& Block::exchange(unsigned mask, const void* value, std::size_t bytes) {
  Fiber& self = current();
  if ((mask >> lane() & 1) == 0) die("a lane that its own mask leaves out");
  std::memcpy(self.offered.data(), value, bytes);
  self.mask = mask;
  self.wait = Wait::warp;
  yield();
  return *self.received;
}

std::int64_t waits = 0, launches = 0;
double now_microseconds = 0;

}  // namespace

using Work = std::function<void()>;

struct Graph {
  std::vector<Work> work;
};

/// Work that nobody has waited for.
struct Queue {
  std::deque<Work> work;
  std::int64_t done = 0;
  /// What is recorded instead of queued; null outside a capture.
  std::unique_ptr<Graph> captured;

  void push(Work next) {
    captured ? captured->work.push_back(std::move(next)) : work.push_back(std::move(next));
  }

  /// What has been queued so far, in number.
  std::int64_t end() const { return done + static_cast<std::int64_t>(work.size()); }
  void drain() { drain_to(end()); }
  void drain_to(std::int64_t position) {
    while (done < position) {
      const auto next = std::move(work.front());
      work.pop_front();
      ++done;
      next();
    }
  }
};

struct Mark {
  Queue* queue = nullptr;
  /// Of the queue, behind what the event waits for.
  std::int64_t position = 0;
  /// When the device came to it; outlives the event.
  std::shared_ptr<double> microseconds = std::make_shared<double>(0);
};

void set_order(Order order) { the_block.set_order(order); }
void* dynamic_shared() { return the_block.shared(); }
int lane() { return static_cast<int>(the_block.lane()); }
const Lanes& exchange(unsigned mask, const void* value, std::size_t bytes) {
  return the_block.exchange(mask, value, bytes);
}

void enqueue(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
             std::function<void()> thread) {
  if (stream == nullptr) die("a launch on the default stream");
  ++launches;
  stream->push([=, thread = std::move(thread)] {
    gridDim = grid;
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          the_block.run(block, shared_bytes, thread);
        }
      }
    }
  });
}

void enqueue_call(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) die("work on the default stream");
  ++launches;
  stream->push(std::move(work));
}
void pass_time(double microseconds) { now_microseconds += microseconds; }

}  // namespace simt

void __syncthreads() { simt::the_block.wait_for_block(); }
int __syncthreads_count(int predicate) {
  simt::the_block.current().predicate = predicate;
  simt::the_block.wait_for_block();
  // Everybody reads before anybody waits at the next barrier: its count is made when all wait
  // there.
  return simt::the_block.predicates();
}
int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
unsigned __ballot_sync(unsigned mask, int predicate) {
  const char value = predicate != 0;
  const simt::Lanes& lanes = simt::exchange(mask, &value, 1);
  unsigned result = 0;
  for (unsigned l = 0; l < 32; ++l) {
    if (mask >> l & 1) result |= unsigned{lanes.bytes[l][0] != std::byte{0}} << l;
  }
  return result;
}

extern "C" {
__attribute__((visibility("default"))) std::int64_t emulated_host_waits() { return simt::waits; }
__attribute__((visibility("default"))) std::int64_t emulated_launches() { return simt::launches; }
}

// ---- The runtime -------------------------------------------------------------------------------

const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->totalGlobalMem = std::size_t{4} << 30;
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
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{4} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream->push([=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  stream->push([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new simt::Queue;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->drain();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->captured) return cudaErrorIllegalState;
  ++simt::waits;
  stream->drain();
  return cudaSuccess;
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
  // Such an event would join streams inside the graph; nobody here does that.
  if (stream->captured) return cudaErrorIllegalState;
  event->queue = stream;
  stream->push([time = event->microseconds] { *time = simt::now_microseconds; });
  event->position = stream->end();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++simt::waits;
  if (event->queue != nullptr) event->queue->drain_to(event->position);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (simt::Queue* other = event->queue; other != nullptr && other != stream) {
    stream->push([other, position = event->position] { other->drain_to(position); });
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->captured) return cudaErrorIllegalState;
  stream->captured = std::make_unique<simt::Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->captured) return cudaErrorIllegalState;
  *graph = stream->captured.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  *instance = new simt::Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
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
