#include "kernels/cuda/memory.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/copy_queue.hpp"
#include "kernels/cuda/library_group.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::kernels::cuda {

void check(cudaError_t status, const char* what) {
  require<DeviceError>(status == cudaSuccess, "CUDA: {} failed: {}", what,
                       cudaGetErrorString(status));
}

CudaMemory::CudaMemory(int device) : device_(device) {
  check(cudaSetDevice(device), "to choose the device");
  attention_ = AttentionChoices(try_warpgroup_kernels(device));
  try {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "to make a stream");
    to_device_.allocate();
    check(cudaHostAlloc(&read_, kReadBytes, cudaHostAllocDefault), "to pin host memory");
    products_ = open_library_products(device);
  } catch (...) {
    release();
    throw;
  }
}

CudaMemory::~CudaMemory() { release(); }

void CudaMemory::release() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  products_.reset();
  attention_ = {};
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (read_ != nullptr) cudaFreeHost(read_);
  if (slab_ != nullptr) cudaFree(slab_);
}

void* CudaMemory::reserve(std::uint64_t capacity_bytes) {
  check(cudaSetDevice(device_), "to choose the device");
  const cudaError_t status = cudaMalloc(&slab_, capacity_bytes);
  if (status != cudaSuccess) {
    cudaGetLastError();  // or the next launch reports it again
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "to ask for free memory");
    fail<DoesNotFitError>(
        "the GPU has no {} in one piece: {} of {} are free; end what else uses it, or lower "
        "run.memory_limit",
        format_bytes(capacity_bytes), format_bytes(free_bytes), format_bytes(total_bytes));
  }
  return slab_;
}

void CudaMemory::copy_to_host(void* host, const void* device, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(host);
  const auto* from = static_cast<const std::byte*>(device);
  for (std::uint64_t done = 0; done < bytes; done += kReadBytes) {
    const std::uint64_t part = std::min(kReadBytes, bytes - done);
    check(cudaMemcpyAsync(read_, from + done, part, cudaMemcpyDeviceToHost, stream_),
          "a copy to the host");
    synchronize();
    std::memcpy(to + done, read_, part);
  }
}

namespace {

/// Pinned memory and an event behind each copy into it.
class PinnedRead final : public HostRead {
 public:
  PinnedRead(cudaStream_t stream, StagingRing& inputs, std::uint64_t bytes)
      : stream_(stream), inputs_(inputs), bytes_(bytes) {
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "to make an event");
    if (const cudaError_t status = cudaHostAlloc(&pinned_, bytes, cudaHostAllocDefault);
        status != cudaSuccess) {
      cudaEventDestroy(done_);
      check(status, "to pin host memory");
    }
  }
  ~PinnedRead() override {
    cudaEventSynchronize(done_);  // a copy may be under way
    cudaEventDestroy(done_);
    cudaFreeHost(pinned_);
  }
  PinnedRead(const PinnedRead&) = delete;
  PinnedRead& operator=(const PinnedRead&) = delete;

  void start(const void* device) override {
    check(cudaMemcpyAsync(pinned_, device, bytes_, cudaMemcpyDeviceToHost, stream_),
          "a copy to the host");
    check(cudaEventRecord(done_, stream_), "to record an event");
    inputs_before_ = inputs_.begun();
  }
  std::span<const std::byte> wait() override {
    inputs_.await(inputs_before_);
    check(cudaEventSynchronize(done_), "the work on the GPU");
    return {static_cast<const std::byte*>(pinned_), bytes_};
  }

 private:
  cudaStream_t stream_;
  StagingRing& inputs_;
  std::uint64_t bytes_, inputs_before_ = 0;
  cudaEvent_t done_ = nullptr;
  void* pinned_ = nullptr;
};

/// An instantiated graph.
class Graph final : public RecordedWork {
 public:
  Graph(cudaStream_t stream, cudaGraphExec_t graph) : stream_(stream), graph_(graph) {}
  ~Graph() override {
    cudaStreamSynchronize(stream_);  // it may be under way
    cudaGraphExecDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() override { check(cudaGraphLaunch(graph_, stream_), "to launch a CUDA graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_;
};

}  // namespace

void CudaMemory::begin_recording() {
  // Other threads of this process may call the runtime meanwhile.
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
        "to begin a CUDA graph (run.cuda_graphs: off does without)");
}

std::unique_ptr<RecordedWork> CudaMemory::end_recording() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph),
        "to record a CUDA graph (run.cuda_graphs: off does without)");
  cudaGraphExec_t instance = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&instance, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "to instantiate a CUDA graph (run.cuda_graphs: off does without)");
  return std::make_unique<Graph>(stream_, instance);
}

std::unique_ptr<HostRead> CudaMemory::make_host_read(std::uint64_t bytes) {
  check(cudaSetDevice(device_), "to choose the device");
  return std::make_unique<PinnedRead>(stream_, to_device_, bytes);
}

std::unique_ptr<CopyQueue> CudaMemory::make_copy_queue() {
  return std::make_unique<CudaCopyQueue>(device_, stream_);
}

DeviceGroupId CudaMemory::new_group_id() { return new_library_group_id(); }

std::unique_ptr<DeviceGroup> CudaMemory::join_group(const DeviceGroupId& id, int rank, int size) {
  return join_library_group(
      {.device = device_, .launches = stream_, .id = id, .rank = rank, .size = size});
}

void CudaMemory::copy_from_host(void* device, const void* host, std::uint64_t bytes) {
  to_device_.send(stream_, device, host, bytes);
}

void CudaMemory::copy_on_device(void* to, const void* from, std::uint64_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
        "a copy on the device");
}

void CudaMemory::synchronize() {
  to_device_.await(to_device_.begun());
  check(cudaStreamSynchronize(stream_), "the work on the GPU");
}

}  // namespace llmtrain::kernels::cuda
