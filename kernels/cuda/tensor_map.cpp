#include "kernels/cuda/tensor_map.hpp"

#include <cuda_runtime.h>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

namespace {

constexpr unsigned kDriver = 12000;  // whose interface this is
constexpr cuuint32_t kColumns = 64;  // of a box: 128 bytes

/// Asked of the driver, so that nothing links with it; null where it lacks the function.
auto encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, kDriver, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      found = nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace

bool describe_heads(const View& matrix, const HeadsLayout& layout, int box_rows, CUtensorMap& map,
                    std::string& why) {
  const auto encode = encoder();
  if (encode == nullptr) {
    why = "no wgmma: the driver describes no tensors (cuTensorMapEncodeTiled)";
    return false;
  }
  // The interface wants every stride to be a multiple of the one before.
  if (matrix.row_stride % layout.head_dim != 0) {
    why = "no wgmma: rows that are no whole number of heads apart";
    return false;
  }
  const auto of = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const CUtensorMapDataType type = matrix.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint64_t element = size_of(matrix.dtype);
  const cuuint64_t row_bytes = of(matrix.row_stride) * element;
  const cuuint64_t sizes[] = {of(layout.head_dim), of(layout.heads), of(layout.rows),
                              of(layout.sequences)};
  const cuuint64_t strides[] = {of(layout.head_dim) * element, row_bytes,
                                of(layout.rows) * row_bytes};
  const cuuint32_t box[] = {kColumns, 1, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, type, 4, matrix.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return true;
  why = fmt::format("no wgmma: the driver refuses to describe a matrix (error {})",
                    static_cast<int>(result));
  return false;
}

}  // namespace llmtrain::kernels::cuda
