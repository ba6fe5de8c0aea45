// Sends attention to cuDNN, or to the kernel of ours that attention_rule names.
#include "kernels/cuda/attention.hpp"

#include <type_traits>

#include "kernels/cuda/memory.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/attention.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

bool all_aligned(std::initializer_list<View> views) {
  for (const View& view : views) {
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0 ||
        static_cast<std::size_t>(view.row_stride) * size_of(view.dtype) % 16 != 0) {
      return false;
    }
  }
  return true;
}

template <class T>
void run_plain_as(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  plain_forward<T>(ctx, op, workspace);
}
template <class T>
void run_plain_as(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  plain_backward<T>(ctx, op, workspace);
}

template <class K>
void run_plain(const KernelCtx& ctx, const K& op, const View& workspace) {
  switch (op.q.dtype) {
    case DType::f64:
      return run_plain_as<double>(ctx, op, workspace);
    case DType::f32:
      return run_plain_as<float>(ctx, op, workspace);
    case DType::bf16:
      return run_plain_as<bf16>(ctx, op, workspace);
    case DType::f16:
      return run_plain_as<f16>(ctx, op, workspace);
    default:
      fail("no attention on a GPU computes in {}", to_string(op.q.dtype));
  }
}

/// False, with the reason in `why`, where the driver does not describe the operands to wgmma.
bool run_own(const KernelCtx& ctx, const AttentionForward& op, const View& workspace,
             AttentionKernel kernel, std::string& why) {
  const auto narrow = [&]<int kDim>() {
    op.q.dtype == DType::bf16 ? tensor_forward<bf16, kDim>(ctx, op, workspace)
                              : tensor_forward<f16, kDim>(ctx, op, workspace);
    return true;
  };
  const auto by_warpgroups = [&]<int kDim>() {
    return op.q.dtype == DType::bf16 ? warpgroup_forward<bf16, kDim>(ctx, op, workspace, why)
                                     : warpgroup_forward<f16, kDim>(ctx, op, workspace, why);
  };
  switch (kernel) {
    case AttentionKernel::plain:
      return run_plain(ctx, op, workspace), true;
    case AttentionKernel::tensor_64:
      return narrow.template operator()<64>();
    case AttentionKernel::tensor_96:
      return narrow.template operator()<96>();
    case AttentionKernel::tensor_128:
      return narrow.template operator()<128>();
    case AttentionKernel::tensor_256:
      return narrow.template operator()<256>();
    case AttentionKernel::warpgroup_64:
      return by_warpgroups.template operator()<64>();
    case AttentionKernel::warpgroup_128:
      return by_warpgroups.template operator()<128>();
  }
  return false;
}

bool run_own(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace,
             AttentionKernel kernel, std::string& why) {
  const auto narrow = [&]<int kDim>() {
    op.q.dtype == DType::bf16 ? tensor_backward<bf16, kDim>(ctx, op, workspace)
                              : tensor_backward<f16, kDim>(ctx, op, workspace);
    return true;
  };
  const auto by_warpgroups = [&]<int kDim>() {
    return op.q.dtype == DType::bf16 ? warpgroup_backward<bf16, kDim>(ctx, op, workspace, why)
                                     : warpgroup_backward<f16, kDim>(ctx, op, workspace, why);
  };
  switch (kernel) {
    case AttentionKernel::plain:
      return run_plain(ctx, op, workspace), true;
    case AttentionKernel::tensor_64:
      return narrow.template operator()<64>();
    case AttentionKernel::tensor_96:
      return narrow.template operator()<96>();
    case AttentionKernel::tensor_128:
      return narrow.template operator()<128>();
    case AttentionKernel::tensor_256:
      return narrow.template operator()<256>();
    case AttentionKernel::warpgroup_64:
      return by_warpgroups.template operator()<64>();
    case AttentionKernel::warpgroup_128:
      return by_warpgroups.template operator()<128>();
  }
  return false;
}

std::string_view name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::plain:
      return "our plain kernels";
    case AttentionKernel::warpgroup_64:
    case AttentionKernel::warpgroup_128:
      return "our kernels for wgmma";
    default:
      return "our kernels for tensor cores";
  }
}

void add_reason(std::string& why, const std::string& reason) {
  if (!reason.empty()) why += (why.empty() ? "" : "; ") + reason;
}

template <class K>
constexpr bool kBackward = std::is_same_v<K, AttentionBackward>;

/// A library's attention, unless it is not taken; `why` then says why.
template <class K>
bool by_library(const KernelCtx& ctx, const K& op, const View& workspace, bool aligned,
                AttentionChoices& choices, std::string& why) {
  CudnnObstacle obstacle = cudnn_obstacle(ctx, op);
  if (obstacle == CudnnObstacle::none && !aligned) obstacle = CudnnObstacle::strides;
  if (obstacle != CudnnObstacle::none) {
    why = to_string(obstacle);
    return false;
  }
  LibraryAttention* const library = choices.library(why);
  bool done = false;
  if (library != nullptr) {
    if constexpr (kBackward<K>) {
      done = library->backward(ctx, op, workspace, why);
    } else {
      done = library->forward(ctx, op, workspace, why);
    }
  }
  require<DeviceError>(done || ctx.attention != AttentionChoice::cudnn,
                       "run.attention is cudnn, but {}; run.attention: auto takes our own kernels",
                       why);
  return done;
}

template <class K>
void run(const KernelCtx& ctx, const K& op, const View& workspace, bool aligned) {
  AttentionChoices& choices = static_cast<CudaMemory&>(ctx.device->backend()).attention();
  std::string why;
  if (by_library(ctx, op, workspace, aligned, choices, why)) {
    choices.record(kBackward<K>, "cuDNN " + attention_library_version().version, why);
    return;
  }
  // What a trial on this machine said is no fixed rule.
  const WarpgroupVerdict& verdict = choices.warpgroups().of(op.q.dtype);
  const bool warpgroups = verdict.used && ctx.determinism != Determinism::layout;
  AttentionKernel kernel = attention_rule(op.shape, op.q.dtype, aligned, warpgroups);
  if (attention_rule(op.shape, op.q.dtype, aligned, true) !=
      attention_rule(op.shape, op.q.dtype, aligned, false)) {
    add_reason(why, verdict.problem);
  }
  std::string refusal;
  if (!run_own(ctx, op, workspace, kernel, refusal)) {
    add_reason(why, refusal);
    kernel = attention_rule(op.shape, op.q.dtype, aligned, false);
    run_own(ctx, op, workspace, kernel, refusal);
  }
  choices.record(kBackward<K>, name_of(kernel), why);
}

void forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  run(ctx, op, workspace, all_aligned({op.q, op.k, op.v, op.out}));
}

void backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  run(ctx, op, workspace, all_aligned({op.q, op.k, op.v, op.out, op.dout, op.dq, op.dk, op.dv}));
}

}  // namespace

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, forward>());
  rows.push_back(row_of<AttentionBackward, backward>());
}

}  // namespace llmtrain::kernels::cuda
