#include "kernels/cuda/cudnn_attention.hpp"

#include <algorithm>
#include <limits>

#include "kernels/cuda/rules/attention.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// A launch over less than so many blocks of 128 queries or keys leaves most of a GPU idle, so that
/// our kernels, which take everything at once, are expected to be faster.
constexpr std::int64_t kLeastBlocks = 96;

void check_library(const CudnnApi& api, cudnnStatus_t status, const char* what) {
  require<DeviceError>(status == CUDNN_STATUS_SUCCESS, "cuDNN: {} failed: {}", what,
                       api.explain(status));
}

std::int64_t blocks_of(const SdpaProblem& p) {
  return p.sequences * p.heads * ceil_div(p.rows, 128);
}

/// The whole, and parts of it that are all of one shape, largest first: the workspace of a
/// backward in a fixed order grows with [S, H, T, T].
std::vector<SdpaProblem> pieces_of(const SdpaProblem& whole) {
  std::vector<SdpaProblem> pieces{whole};
  if (!whole.backward) return pieces;
  const auto add = [&](std::int64_t sequences, std::int64_t kv_heads) {
    SdpaProblem piece = whole;
    piece.sequences = sequences;
    piece.heads = whole.heads / whole.kv_heads * kv_heads;
    piece.kv_heads = kv_heads;
    if (blocks_of(piece) >= kLeastBlocks) pieces.push_back(piece);
  };
  for (std::int64_t n = whole.sequences - 1; n > 0; --n) {
    if (whole.sequences % n == 0) add(n, whole.kv_heads);
  }
  for (std::int64_t n = whole.kv_heads - 1; n > 0; --n) {
    if (whole.kv_heads % n == 0) add(1, n);
  }
  return pieces;
}

constexpr std::int64_t kFloat = sizeof(float);

class Operands {
 public:
  explicit Operands(const SdpaProblem& whole) : p_(whole) {}

  void queries(SdpaTensor name, const View& view) { matrix(name, view, p_.heads / p_.kv_heads); }
  void keys(SdpaTensor name, const View& view) { matrix(name, view, 1); }
  /// [S, H, T, columns] in FP32.
  void per_query(SdpaTensor name, const void* data, std::int64_t columns = 1) {
    const std::int64_t head_bytes = p_.rows * columns * kFloat;
    put(name, data, p_.heads * head_bytes, p_.heads / p_.kv_heads * head_bytes);
  }
  void documents(const View& begin) {
    constexpr std::int64_t kBytes = sizeof(std::int32_t);
    if (p_.documents) put(kSdpaDocumentBegin, begin.data, p_.rows * kBytes, 0);
  }
  std::span<const SdpaOperand> all() const { return all_; }

 private:
  void matrix(SdpaTensor name, const View& view, std::int64_t heads) {
    const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
    put(name, view.data, p_.rows * view.row_stride * bytes, heads * p_.head_dim * bytes);
  }
  void put(SdpaTensor name, const void* data, std::int64_t sequence_bytes,
           std::int64_t head_bytes) {
    all_.push_back({name, static_cast<const std::byte*>(data), sequence_bytes, head_bytes});
  }
  const SdpaProblem& p_;
  std::vector<SdpaOperand> all_;
};

SdpaScalars scalars_of(const AttentionShape& shape) {
  return {.scale = static_cast<float>(shape.scale),
          .hidden = -std::numeric_limits<float>::infinity(),
          .window = static_cast<float>(shape.window),
          .one = 1};
}

std::uint64_t left_of(const View& workspace, std::uint64_t taken) {
  const std::uint64_t bytes = workspace.defined() ? workspace.bytes() : 0;
  return bytes - std::min(bytes, taken);
}

}  // namespace

CudnnAttention::CudnnAttention(const CudnnApi& api) : api_(api) {
  const cudnnStatus_t status = api.create(&handle_);
  if (status != CUDNN_STATUS_SUCCESS) throw CudnnRefusal("to begin: " + api.explain(status));
}

CudnnAttention::~CudnnAttention() { api_.destroy(handle_); }

CudnnAttention::Prepared CudnnAttention::prepare(const Key& key) const {
  Prepared prepared{.piece = key.problem};
  for (const SdpaProblem& piece : pieces_of(key.problem)) {
    try {
      const CudnnDescriptor graph = sdpa_graph(api_, piece, handle_);
      // The library's note of engines that are not deterministic is not enough: sums in any order
      // are a matter of the graph (docs/gpu-results.md).
      prepared.plan.emplace(cudnn_plan(
          api_, graph, {.handle = handle_},
          {.workspace_bytes = key.workspace_bytes, .deterministic = !piece.adds_in_any_order}));
      prepared.piece = piece;
      return prepared;
    } catch (const CudnnRefusal& refusal) {
      if (prepared.refusal.empty()) prepared.refusal = refusal.what();
      if (!refusal.for_workspace()) break;
    }
  }
  return prepared;
}

const CudnnAttention::Prepared& CudnnAttention::find(const Key& key) {
  const auto known = prepared_.find(key);
  if (known != prepared_.end()) return known->second;
  if (prepared_.size() >= kMaxPrepared) prepared_.clear();
  return prepared_.emplace(key, prepare(key)).first->second;
}

void CudnnAttention::execute(const Prepared& prepared, std::span<const SdpaOperand> operands,
                             const SdpaScalars& scalars, std::int64_t sequence,
                             std::int64_t kv_head, void* workspace) const {
  std::vector<std::int64_t> names;
  std::vector<const void*> data;
  const auto put = [&](SdpaTensor name, const void* at) {
    names.push_back(name);
    data.push_back(at);
  };
  for (const SdpaOperand& x : operands) {
    put(x.name, x.data + sequence * x.sequence_bytes + kv_head * x.head_bytes);
  }
  put(kSdpaScale, &scalars.scale);
  put(kSdpaHidden, &scalars.hidden);
  if (prepared.piece.windowed) put(kSdpaWindow, &scalars.window);
  if (prepared.piece.backward) put(kSdpaOne, &scalars.one);
  CudnnDescriptor pack(api_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
           std::span<const std::int64_t>(names))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<const void* const>(data))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize();
  check_library(api_, api_.execute(handle_, prepared.plan->plan.get(), pack.get()), "an attention");
}

void CudnnAttention::run(const KernelCtx& ctx, const SdpaProblem& whole, const Prepared& prepared,
                         std::span<const SdpaOperand> operands, const SdpaScalars& scalars,
                         void* workspace) {
  if (stream_ != stream_of(ctx)) {
    check_library(api_, api_.set_stream(handle_, stream_of(ctx)), "to choose the stream");
    stream_ = stream_of(ctx);
  }
  const SdpaProblem& piece = prepared.piece;
  for (std::int64_t s = 0; s < whole.sequences; s += piece.sequences) {
    for (std::int64_t h = 0; h < whole.kv_heads; h += piece.kv_heads) {
      execute(prepared, operands, scalars, s, h, workspace);
    }
  }
}

bool CudnnAttention::forward(const KernelCtx& ctx, const AttentionForward& op,
                             const View& workspace, std::string& why) {
  const SdpaProblem whole = sdpa_problem(op);
  const CudnnScratch scratch = CudnnScratch::forward();
  const Prepared& prepared = find({whole, left_of(workspace, scratch.library)});
  if (!prepared.plan) {
    why = prepared.refusal;
    return false;
  }
  Operands operands(whole);
  operands.queries(kSdpaQ, op.q);
  operands.keys(kSdpaK, op.k);
  operands.keys(kSdpaV, op.v);
  operands.queries(kSdpaOut, op.out);
  operands.per_query(kSdpaLse, op.lse.data);
  operands.documents(op.shape.q_document_begin);
  run(ctx, whole, prepared, operands.all(), scalars_of(op.shape),
      workspace.as<std::byte>() + scratch.library);
  return true;
}

bool CudnnAttention::backward(const KernelCtx& ctx, const AttentionBackward& op,
                              const View& workspace, std::string& why) {
  const bool any_order = ctx.determinism == Determinism::fast;
  const SdpaProblem whole = sdpa_problem(op, any_order);
  const CudnnScratch scratch = CudnnScratch::backward(op, ctx.determinism);
  const Prepared& prepared = find({whole, left_of(workspace, scratch.library)});
  if (!prepared.plan) {
    why = prepared.refusal;
    return false;
  }
  auto* const memory = workspace.as<std::byte>();
  Operands operands(whole);
  operands.queries(kSdpaQ, op.q);
  operands.keys(kSdpaK, op.k);
  operands.keys(kSdpaV, op.v);
  operands.queries(kSdpaOut, op.out);
  operands.queries(kSdpaDout, op.dout);
  operands.queries(kSdpaDq, op.dq);
  operands.keys(kSdpaDk, op.dk);
  operands.keys(kSdpaDv, op.dv);
  operands.per_query(kSdpaLse, op.lse.data);
  operands.per_query(kSdpaDelta, memory);
  if (any_order) operands.per_query(kSdpaDqSums, memory + scratch.dq_sums, whole.head_dim);
  operands.documents(op.shape.q_document_begin);
  run(ctx, whole, prepared, operands.all(), scalars_of(op.shape), memory + scratch.library);
  return true;
}

std::unique_ptr<LibraryAttention> open_library_attention(std::string& why) {
  const LoadedCudnn& library = load_cudnn();
  why = library.problem;
  if (!why.empty()) return nullptr;
  try {
    return std::make_unique<CudnnAttention>(library.api);
  } catch (const CudnnRefusal& refusal) {
    why = refusal.what();
    return nullptr;
  }
}

LibraryVersion attention_library_version() {
  const LoadedCudnn& library = load_cudnn();
  return {.version = library.version, .problem = library.problem};
}

}  // namespace llmtrain::kernels::cuda
