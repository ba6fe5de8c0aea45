#pragma once
/// Products that oneDNN does not do in one call within the workspace.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels::fast {

/// A product with an FP32 result, in pieces of k added up in c where oneDNN refuses the whole or is
/// slow. (dnnl_sgemm would be no slower, but takes memory that no plan knows of.) `scratch_bytes`
/// as in matmul_workspace().
void matmul_in_depth(const KernelCtx& ctx, const Matmul& mm, void* scratch,
                     std::uint64_t scratch_bytes);

/// A bf16 product by way of FP32 tiles, for processors without bf16 instructions. `workspace` as in
/// matmul_workspace().
void matmul_in_tiles(const KernelCtx& ctx, const Matmul& mm, std::byte* workspace);

}  // namespace llmtrain::kernels::fast
