#pragma once
/// How a fast kernel hands on what it does not do itself.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

template <class K>
void run_reference(const KernelCtx& ctx, const K& kernel, const View& workspace) {
  cpu_reference_table().find(K::name)(ctx, &kernel, workspace);
}

}  // namespace llmtrain::kernels
