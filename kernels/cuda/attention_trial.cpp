#include "kernels/cuda/attention_trial.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/rules/architectures.hpp"
#include "kernels/cuda/rules/attention.hpp"
#include "kernels/cuda/simt.cuh"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr std::int64_t kHeads = 2, kKvHeads = 1;

/// Bytes on the device that live as long as the trial.
class Scratch {
 public:
  explicit Scratch(cudaStream_t stream) : stream_(stream) {}
  ~Scratch() {
    cudaStreamSynchronize(stream_);
    for (void* const block : blocks_) cudaFree(block);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// NaN, so that what nobody writes agrees with nothing.
  View make(DType dtype, const Shape& shape) {
    View view{.data = nullptr, .dtype = dtype, .shape = shape, .row_stride = shape.cols()};
    check(cudaMalloc(&view.data, view.bytes()), "to allocate");
    blocks_.push_back(view.data);
    check(cudaMemsetAsync(view.data, 0xff, view.bytes(), stream_), "to fill memory");
    return view;
  }
  template <class T>
  View make(const Shape& shape, const std::vector<T>& values) {
    const View view = make(dtype_of<T>, shape);
    check(cudaMemcpyAsync(view.data, values.data(), view.bytes(), cudaMemcpyHostToDevice, stream_),
          "a copy to the device");
    check(cudaStreamSynchronize(stream_), "a copy to the device");
    return view;
  }
  template <class T>
  View normals(std::string_view name, const Shape& shape) {
    const PhiloxKey key = philox_key(1, "trial", name);
    std::vector<T> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto x = static_cast<float>(normal_quantile(unit_interval(philox_word(key, 0, i))));
      if constexpr (std::is_same_v<T, bf16>) values[i] = to_bf16(x);
      if constexpr (std::is_same_v<T, f16>) values[i] = to_f16(x);
    }
    return make(shape, values);
  }
  template <class T>
  std::vector<float> read(const View& view) {
    std::vector<T> values(static_cast<std::size_t>(view.numel()));
    check(cudaMemcpyAsync(values.data(), view.data, view.bytes(), cudaMemcpyDeviceToHost, stream_),
          "a copy to the host");
    check(cudaStreamSynchronize(stream_), "the trial");
    std::vector<float> result;
    for (const T x : values) {
      if constexpr (std::is_same_v<T, float>) {
        result.push_back(x);
      } else {
        result.push_back(to_float(x));
      }
    }
    return result;
  }

 private:
  cudaStream_t stream_;
  std::vector<void*> blocks_;
};

/// Whether two results differ by no more than a few roundings to T of the largest value.
template <class T>
bool agree(std::span<const float> a, std::span<const float> b) {
  constexpr float kRoundings = 4 * (std::is_same_v<T, bf16> ? 0x1p-8f : 0x1p-11f);
  float largest = 0;
  for (const float x : b) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= kRoundings * largest)) return false;
  }
  return true;
}

/// One type and head_dim of the trial, whose last tiles are not whole: what differs, or nothing.
template <class T, int kDim, std::int64_t kRows>
std::string compare(cudaStream_t stream) {
  Scratch scratch(stream);
  const KernelCtx ctx{.stream = {stream}};
  AttentionShape shape{.num_sequences = 1,
                       .num_heads = kHeads,
                       .num_kv_heads = kKvHeads,
                       .head_dim = kDim,
                       .scale = 1 / std::sqrt(static_cast<double>(kDim))};
  std::vector<std::int32_t> positions, begins;
  for (std::int32_t i = 0; i < kRows; ++i) {
    positions.push_back(i);
    begins.push_back(i < 20 ? 0 : 20);
  }
  shape.q_position = shape.k_position = scratch.make({kRows}, positions);
  shape.q_document_begin = scratch.make({kRows}, begins);
  const Shape of_q{kRows, kHeads * kDim}, of_k{kRows, kKvHeads * kDim};
  const View q = scratch.normals<T>("q", of_q), k = scratch.normals<T>("k", of_k),
             v = scratch.normals<T>("v", of_k);
  const View workspace = scratch.make(
      DType::f32, {static_cast<std::int64_t>(
                      AttentionScratch(shape, kRows, kRows, sizeof(float)).backward_bytes / 4)});
  const auto forward = [&] {
    return AttentionForward{shape,
                            q,
                            k,
                            v,
                            scratch.make(dtype_of<T>, of_q),
                            scratch.make(DType::f32, {1, kHeads, kRows})};
  };
  const AttentionForward tried = forward(), known = forward();
  std::string why;
  if (!warpgroup_forward<T, kDim>(ctx, tried, workspace, why)) return why;
  tensor_forward<T, kDim>(ctx, known, workspace);
  if (!agree<T>(scratch.read<T>(tried.out), scratch.read<T>(known.out)) ||
      !agree<T>(scratch.read<float>(tried.lse), scratch.read<float>(known.lse))) {
    return fmt::format("no wgmma: their results in {} for head_dim {} are not those of mma.sync",
                       to_string(dtype_of<T>), kDim);
  }
  // Of the same output and statistics, so that each direction is compared by itself.
  const View dout = scratch.normals<T>("dout", of_q);
  const auto backward = [&] {
    return AttentionBackward{shape,
                             q,
                             k,
                             v,
                             known.out,
                             known.lse,
                             dout,
                             scratch.make(dtype_of<T>, of_q),
                             scratch.make(dtype_of<T>, of_k),
                             scratch.make(dtype_of<T>, of_k),
                             {}};
  };
  const AttentionBackward differentiated = backward(), reference = backward();
  if (!warpgroup_backward<T, kDim>(ctx, differentiated, workspace, why)) return why;
  tensor_backward<T, kDim>(ctx, reference, workspace);
  const auto same = [&](const View& x, const View& y) {
    return agree<T>(scratch.read<T>(x), scratch.read<T>(y));
  };
  if (!same(differentiated.dq, reference.dq) || !same(differentiated.dk, reference.dk) ||
      !same(differentiated.dv, reference.dv)) {
    return fmt::format("no wgmma: their gradients in {} for head_dim {} are not those of mma.sync",
                       to_string(dtype_of<T>), kDim);
  }
  return "";
}

/// What is wrong with the kernels of T, or nothing.
template <class T>
std::string run_trial() {
  cudaStream_t stream = nullptr;
  try {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "to make a stream");
    // Three tiles of keys, so that slots are filled again.
    std::string problem = compare<T, 64, 330>(stream);
    if (problem.empty()) problem = compare<T, 128, 150>(stream);
    check(cudaStreamDestroy(stream), "to end the trial");
    return problem;
  } catch (const DeviceError& error) {
    // After some errors no call of the process succeeds but this one.
    const bool recovered = cudaDeviceReset() == cudaSuccess && cudaGetLastError() == cudaSuccess &&
                           cudaFree(nullptr) == cudaSuccess;
    require<DeviceError>(recovered,
                         "the trial of attention with wgmma failed, and the GPU with it ({}); set "
                         "LLMTRAIN_WGMMA=off to do without",
                         error.what());
    return fmt::format("no wgmma: their trial failed ({})", error.what());
  }
}

/// What LLMTRAIN_WGMMA says: empty, off or untried.
std::string_view setting() {
  const char* const value = std::getenv("LLMTRAIN_WGMMA");
  const std::string_view text = value == nullptr ? "" : value;
  require<DeviceError>(text.empty() || text == "off" || text == "untried",
                       "LLMTRAIN_WGMMA is {}; it can be off, untried, or not set", text);
  return text;
}

WarpgroupKernels both(const WarpgroupVerdict& verdict) { return {.bf16 = verdict, .f16 = verdict}; }

WarpgroupVerdict verdict(std::string problem) {
  const bool used = problem.empty();
  return {.used = used, .problem = std::move(problem)};
}

}  // namespace

WarpgroupKernels try_warpgroup_kernels(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "to describe the device");
  if (!has_wgmma(10 * properties.major + properties.minor)) return {};
  const std::string_view wanted = setting();
  if (wanted == "off") return both({.used = false, .problem = "LLMTRAIN_WGMMA is off"});
  if (!has_wgmma_code(LLMTRAIN_CUDA_ARCHITECTURES)) {
    return both(
        {.used = false,
         .problem = "no wgmma: the plugin is built without 90a in CMAKE_CUDA_ARCHITECTURES"});
  }
  if (wanted == "untried") return both({.used = true, .problem = "LLMTRAIN_WGMMA is untried"});
  static std::map<int, WarpgroupKernels> tried;
  auto found = tried.find(device);
  if (found == tried.end()) {
    const WarpgroupKernels kernels{.bf16 = verdict(run_trial<bf16>()),
                                   .f16 = verdict(run_trial<f16>())};
    found = tried.emplace(device, kernels).first;
  }
  return found->second;
}

}  // namespace llmtrain::kernels::cuda
