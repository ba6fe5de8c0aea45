// The real NCCL, without a GPU: it is loaded, has the functions that we use, and says why it
// connects nothing. What it does between GPUs only GPUs can show.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <cstring>

#include <doctest/doctest.h>

#include "kernels/cuda/library_group.hpp"
#include "kernels/cuda/nccl_api.hpp"
#include "lib/base/error.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels::cuda;

TEST_CASE("NCCL has the functions that we use, and a version that we know") {
  const LoadedNccl& loaded = load_nccl();
  CHECK(loaded.problem == "");
  CHECK(loaded.version.starts_with("2."));
  CHECK(std::strlen(loaded.api.error_string(ncclInvalidUsage)) > 0);
}

TEST_CASE("ids differ, and a group without a GPU is refused with the library's reason") {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) {
    MESSAGE("there is a GPU: a group of one");
    const DeviceGroupId id = new_library_group_id();
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    float* data = nullptr;
    REQUIRE(cudaMalloc(&data, 4 * sizeof(float)) == cudaSuccess);
    const float given[4] = {1, 2, 3, 4};
    REQUIRE(cudaMemcpy(data, given, sizeof given, cudaMemcpyHostToDevice) == cudaSuccess);
    {
      const auto group =
          join_library_group({.device = 0, .launches = stream, .id = id, .rank = 0, .size = 1});
      const auto call = group->all_reduce(data, 4, DType::f32, ReduceOp::sum);
      call->join();
      REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
      CHECK(call->is_done());
      group->check();
    }
    float found[4] = {};
    REQUIRE(cudaMemcpy(found, data, sizeof found, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(std::memcmp(found, given, sizeof given) == 0);
    return;
  }
  try {
    const DeviceGroupId id = new_library_group_id();
    CHECK(id != new_library_group_id());
    join_library_group({.id = id, .rank = 0, .size = 1});
    FAIL("a group without a GPU");
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    CHECK((text.starts_with("NCCL: ") || text.starts_with("CUDA: ")));
    CHECK(text.find(" failed: ") != std::string::npos);
  }
}

int main(int argc, char** argv) {
  if (load_nccl().version.empty()) {
    std::printf("skipped: %s\n", load_nccl().problem.c_str());
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
