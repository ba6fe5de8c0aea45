// The real cuDNN, without a GPU: since 9.8 it proposes engines for a described device ("deviceless
// ahead-of-time compilation", docs.nvidia.com/deeplearning/cudnn). So our graphs are shown to the
// library itself, and what the emulated GPU's stand-in believes of its engines is compared.
#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "kernels/cuda/cudnn_sdpa.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels::cuda;

namespace {

/// What cuDNN asks of a device, as it writes it itself.
constexpr std::string_view kH100 =
    R"({"version":1,"deviceName":"NVIDIA H100 80GB HBM3","cudaDeviceId":0,"deviceVer":900,)"
    R"("multiProcessorCount":132,"driverVer":13000,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("totalGlobalMem":85000000000,"maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800})";
constexpr std::string_view kA100 =
    R"({"version":1,"deviceName":"NVIDIA A100-SXM4-80GB","cudaDeviceId":0,"deviceVer":800,)"
    R"("multiProcessorCount":108,"driverVer":13000,"maxSharedMemoryPerBlockOptin":166912,)"
    R"("totalGlobalMem":85000000000,"maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("smClockRateKHz":1410000,"memClockRateKHz":1593000,"l2CacheSize":41943040})";

CudnnDescriptor described(std::string_view device) {
  CudnnDescriptor descriptor(load_cudnn().api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  descriptor
      .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           std::span<const char>(device))
      .finalize();
  return descriptor;
}

/// q, k, v and their gradients are columns of one buffer each.
SdpaProblem fused(std::int64_t sequences, std::int64_t rows, std::int64_t heads,
                  std::int64_t kv_heads, std::int64_t head_dim) {
  const std::int64_t stride = (heads + 2 * kv_heads) * head_dim;
  return {.sequences = sequences,
          .rows = rows,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .q_stride = stride,
          .k_stride = stride,
          .v_stride = stride,
          .out_stride = heads * head_dim,
          .dtype = DType::bf16};
}

SdpaProblem backward_of(SdpaProblem p) {
  p.backward = true;
  p.dq_stride = p.dk_stride = p.dv_stride = p.q_stride;
  p.dout_stride = p.out_stride;
  return p;
}

/// Bytes of workspace of the first engine that the library proposes.
std::uint64_t workspace_of(const SdpaProblem& p, std::string_view device) {
  const CudnnApi& api = load_cudnn().api;
  const CudnnDescriptor target = described(device);
  const CudnnDescriptor graph = sdpa_graph(api, p, nullptr);
  return cudnn_candidates(api, graph, {.device = &target}).front().workspace_bytes;
}

constexpr std::uint64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("cuDNN has engines for attention as we describe it, and no forward needs much memory") {
  for (const std::string_view device : {kH100, kA100}) {
    for (const std::int64_t head_dim : {8, 40, 64, 96, 128, 192, 256}) {
      for (const std::int64_t rows : {2, 300, 1024}) {
        for (const int masks : {0, 1, 2, 3}) {
          SdpaProblem p = fused(2, rows, 6, rows == 300 ? 2 : 6, head_dim);
          p.windowed = (masks & 1) != 0;
          p.documents = (masks & 2) != 0;
          CAPTURE((device == kH100 ? "H100" : "A100"));
          CAPTURE(head_dim);
          CAPTURE(rows);
          CAPTURE(masks);
          for (const DType dtype : {DType::bf16, DType::f16}) {
            CAPTURE(to_string(dtype));
            p.dtype = dtype;
            CHECK(workspace_of(p, device) <= 256);
            // Elsewhere our kernels take over.
            const bool has_backward = device == kH100 || (head_dim <= 128 && !p.documents);
            if (has_backward) {
              CHECK(workspace_of(backward_of(p), device) > 0);
            } else {
              CHECK_THROWS_AS(workspace_of(backward_of(p), device), CudnnRefusal);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a backward in a fixed order needs [S, H, T, T] in bf16 or fp16, and all heads of dk and dv") {
  // GPT-2 124M, 8 samples of 1,024 tokens: 192 MiB. Llama 3 8B, 4,096 tokens: 1,088 MiB.
  const std::uint64_t gpt2 = workspace_of(backward_of(fused(8, 1024, 12, 12, 64)), kH100);
  CHECK(gpt2 >= 192 * kMiB);
  CHECK(gpt2 <= 193 * kMiB);
  const std::uint64_t llama = workspace_of(backward_of(fused(1, 4096, 32, 8, 128)), kH100);
  CHECK(llama >= 1088 * kMiB);
  CHECK(llama <= 1089 * kMiB);
  // A piece of one sequence fits in the default of run.library_workspace.
  const SdpaProblem piece = backward_of(fused(1, 1024, 12, 12, 64));
  CHECK(workspace_of(piece, kH100) <= 32 * kMiB);
}

TEST_CASE("sums of dq in any order need little, and their engines are not noted as such") {
  const CudnnApi& api = load_cudnn().api;
  const CudnnDescriptor device = described(kH100);
  SdpaProblem p = backward_of(fused(8, 1024, 12, 12, 64));
  p.adds_in_any_order = true;
  const auto candidates = cudnn_candidates(api, sdpa_graph(api, p, nullptr), {.device = &device});
  CHECK(candidates.front().workspace_bytes <= 256);
  // Why determinism is a matter of the graph; should a version note it, nothing changes.
  WARN(candidates.front().deterministic);
}

TEST_CASE("graphs become code") {
  const CudnnApi& api = load_cudnn().api;
  const CudnnDescriptor device = described(kH100);
  SdpaProblem documents = fused(2, 512, 4, 2, 64);
  documents.documents = true;
  for (const SdpaProblem& p : {documents, backward_of(documents)}) {
    std::string outcome = "a plan";
    try {
      cudnn_plan(api, sdpa_graph(api, p, nullptr), {.device = &device},
                 {.workspace_bytes = 1024 * kMiB, .deterministic = true});
    } catch (const CudnnRefusal& refusal) {
      outcome = refusal.what();
    }
    // A driver that is only a stub loads nothing: everything before that has passed.
    const bool compiled = outcome == "a plan" || outcome.find("cuLibraryLoadData") != outcome.npos;
    CHECK_MESSAGE(compiled, outcome);
  }
}

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  if (const LoadedCudnn& library = load_cudnn(); !library.problem.empty()) {
    std::printf("skipped: %s\n", library.problem.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}
