#include "kernels/cuda/cudnn_sdpa.hpp"

namespace llmtrain::kernels::cuda {

namespace {

enum Axis : std::int64_t { kRows = 2, kColumns = 3 };

cudnnDataType_t library_type(DType dtype) {
  return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/// Heads of a strided matrix [sequences * rows, heads * head_dim].
CudnnTensor heads_of(CudnnGraph& graph, std::int64_t uid, const SdpaProblem& p, std::int64_t heads,
                     std::int64_t stride) {
  return graph.operand(uid, library_type(p.dtype), {p.sequences, heads, p.rows, p.head_dim},
                       {p.rows * stride, p.head_dim, stride, 1});
}

/// The same with rows and columns exchanged, as the second factor of a product with q or dout.
CudnnTensor heads_transposed(CudnnGraph& graph, std::int64_t uid, const SdpaProblem& p,
                             std::int64_t stride) {
  return graph.operand(uid, library_type(p.dtype), {p.sequences, p.kv_heads, p.head_dim, p.rows},
                       {p.rows * stride, p.head_dim, 1, stride});
}

CudnnDims pairs_of(const SdpaProblem& p) { return {p.sequences, p.heads, p.rows, p.rows}; }
CudnnDims statistic_of(const SdpaProblem& p) { return {p.sequences, p.heads, p.rows, 1}; }

CudnnTensor statistic(CudnnGraph& graph, std::int64_t uid, const SdpaProblem& p) {
  return graph.operand(uid, CUDNN_DATA_FLOAT, statistic_of(p), {p.heads * p.rows, p.rows, 1, 1});
}

/// Scores of hidden keys to -inf. Seen are row >= column, column >= document_begin[row] and
/// column + window > row, in the order of operands that engines recognise.
CudnnTensor masked(CudnnGraph& graph, const SdpaProblem& p, CudnnTensor scores) {
  const CudnnTensor hidden = graph.scalar(kSdpaHidden, CUDNN_DATA_FLOAT);
  const CudnnTensor causal = graph.compare(CUDNN_POINTWISE_CMP_GE, graph.index(scores, kRows),
                                           graph.index(scores, kColumns));
  scores = graph.select(causal, scores, hidden);
  if (p.documents) {
    const CudnnTensor begin = graph.operand(kSdpaDocumentBegin, CUDNN_DATA_INT32,
                                            {p.sequences, 1, p.rows, 1}, {p.rows, p.rows, 1, 1});
    const CudnnTensor own =
        graph.compare(CUDNN_POINTWISE_CMP_GE, graph.index(scores, kColumns), begin);
    scores = graph.select(own, scores, hidden);
  }
  if (!p.windowed) return scores;
  const CudnnTensor row = graph.index(scores, kRows);
  const CudnnTensor reach = graph.binary(CUDNN_POINTWISE_ADD, graph.index(scores, kColumns),
                                         graph.scalar(kSdpaWindow, CUDNN_DATA_FLOAT));
  return graph.select(graph.compare(CUDNN_POINTWISE_CMP_GT, reach, row), scores, hidden);
}

void describe_forward(CudnnGraph& graph, const SdpaProblem& p) {
  const CudnnTensor q = heads_of(graph, kSdpaQ, p, p.heads, p.q_stride);
  const CudnnTensor kt = heads_transposed(graph, kSdpaK, p, p.k_stride);
  const CudnnTensor v = heads_of(graph, kSdpaV, p, p.kv_heads, p.v_stride);
  const CudnnTensor out = heads_of(graph, kSdpaOut, p, p.heads, p.out_stride);
  const CudnnTensor products = graph.virtual_tensor(pairs_of(p));
  graph.matmul(q, kt, products);
  const CudnnTensor scaled =
      graph.binary(CUDNN_POINTWISE_MUL, products, graph.scalar(kSdpaScale, CUDNN_DATA_FLOAT));
  const CudnnTensor scores = masked(graph, p, scaled);
  const CudnnTensor max = graph.virtual_tensor(statistic_of(p));
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, max);
  const CudnnTensor e =
      graph.unary(CUDNN_POINTWISE_EXP, graph.binary(CUDNN_POINTWISE_SUB, scores, max));
  const CudnnTensor sum = graph.virtual_tensor(statistic_of(p));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  graph.binary(CUDNN_POINTWISE_ADD, max, graph.unary(CUDNN_POINTWISE_LOG, sum),
               statistic(graph, kSdpaLse, p));
  const CudnnTensor probabilities = graph.virtual_tensor(pairs_of(p), library_type(p.dtype));
  graph.binary(CUDNN_POINTWISE_DIV, e, sum, probabilities);
  graph.matmul(probabilities, v, out);
}

/// What a factor [S, H, T, T] and x [S, H, T, D] make for all heads, summed over those that share
/// a key/value head.
void summed_over_group(CudnnGraph& graph, const SdpaProblem& p, const CudnnTensor& factor,
                       const CudnnTensor& x, const CudnnTensor& y) {
  if (p.heads == p.kv_heads) {
    graph.matmul(factor, x, y);
    return;
  }
  const CudnnTensor all =
      graph.virtual_tensor({p.sequences, p.heads, p.rows, p.head_dim}, library_type(p.dtype));
  graph.matmul(factor, x, all);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, y);
}

/// delta = rowsum(dout * out) * 1; without the factor, that of dropout, it is not recognised.
CudnnTensor delta_of(CudnnGraph& graph, const SdpaProblem& p, const CudnnTensor& dout) {
  const CudnnTensor out = heads_of(graph, kSdpaOut, p, p.heads, p.out_stride);
  const CudnnTensor sums = graph.virtual_tensor(statistic_of(p));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, graph.binary(CUDNN_POINTWISE_MUL, dout, out), sums);
  const CudnnTensor delta = statistic(graph, kSdpaDelta, p);
  graph.binary(CUDNN_POINTWISE_MUL, sums, graph.scalar(kSdpaOne, CUDNN_DATA_FLOAT), delta);
  return delta;
}

void describe_backward(CudnnGraph& graph, const SdpaProblem& p) {
  const cudnnDataType_t type = library_type(p.dtype);
  const CudnnTensor q = heads_of(graph, kSdpaQ, p, p.heads, p.q_stride);
  const CudnnTensor kt = heads_transposed(graph, kSdpaK, p, p.k_stride);
  const CudnnTensor vt = heads_transposed(graph, kSdpaV, p, p.v_stride);
  const CudnnTensor dout = heads_of(graph, kSdpaDout, p, p.heads, p.dout_stride);
  const CudnnTensor dq = heads_of(graph, kSdpaDq, p, p.heads, p.dq_stride);
  const CudnnTensor dk = heads_of(graph, kSdpaDk, p, p.kv_heads, p.dk_stride);
  const CudnnTensor dv = heads_of(graph, kSdpaDv, p, p.kv_heads, p.dv_stride);
  const CudnnTensor scale = graph.scalar(kSdpaScale, CUDNN_DATA_FLOAT);
  const CudnnTensor delta = delta_of(graph, p, dout);

  const CudnnTensor products = graph.virtual_tensor(pairs_of(p));
  graph.matmul(q, kt, products);
  const CudnnTensor scores =
      graph.binary(CUDNN_POINTWISE_SUB, graph.binary(CUDNN_POINTWISE_MUL, products, scale),
                   statistic(graph, kSdpaLse, p));
  const CudnnTensor probabilities = graph.unary(CUDNN_POINTWISE_EXP, masked(graph, p, scores));
  summed_over_group(graph, p, graph.transposed(probabilities, type), dout, dv);

  const CudnnTensor dp = graph.virtual_tensor(pairs_of(p));
  graph.matmul(dout, vt, dp);
  const CudnnTensor ds =
      graph.binary(CUDNN_POINTWISE_MUL,
                   graph.binary(CUDNN_POINTWISE_MUL, graph.binary(CUDNN_POINTWISE_SUB, dp, delta),
                                probabilities),
                   scale);
  summed_over_group(graph, p, graph.transposed(ds, type), q, dk);

  const CudnnTensor k = graph.transposed(kt, type);
  if (!p.adds_in_any_order) {
    graph.matmul(ds, k, dq);
    return;
  }
  const CudnnDims dims{p.sequences, p.heads, p.rows, p.head_dim};
  const CudnnTensor sums =
      graph.operand(kSdpaDqSums, CUDNN_DATA_FLOAT, dims,
                    {p.heads * p.rows * p.head_dim, p.rows * p.head_dim, p.head_dim, 1});
  graph.matmul(ds, k, sums);
  graph.unary(CUDNN_POINTWISE_IDENTITY, sums, dq);
}

}  // namespace

SdpaProblem sdpa_problem(const AttentionForward& op) {
  return {.sequences = op.shape.num_sequences,
          .rows = op.q.rows() / op.shape.num_sequences,
          .heads = op.shape.num_heads,
          .kv_heads = op.shape.num_kv_heads,
          .head_dim = op.shape.head_dim,
          .q_stride = op.q.row_stride,
          .k_stride = op.k.row_stride,
          .v_stride = op.v.row_stride,
          .out_stride = op.out.row_stride,
          .dtype = op.q.dtype,
          .windowed = op.shape.window > 0,
          .documents = op.shape.known_rows != KnownRows::one_document};
}

SdpaProblem sdpa_problem(const AttentionBackward& op, bool adds_in_any_order) {
  SdpaProblem problem = sdpa_problem(AttentionForward{
      .shape = op.shape, .q = op.q, .k = op.k, .v = op.v, .out = op.out, .lse = op.lse});
  problem.dout_stride = op.dout.row_stride;
  problem.dq_stride = op.dq.row_stride;
  problem.dk_stride = op.dk.row_stride;
  problem.dv_stride = op.dv.row_stride;
  problem.backward = true;
  problem.adds_in_any_order = adds_in_any_order;
  return problem;
}

CudnnDescriptor sdpa_graph(const CudnnApi& api, const SdpaProblem& problem, cudnnHandle_t handle) {
  CudnnGraph graph(api);
  if (problem.backward) {
    describe_backward(graph, problem);
  } else {
    describe_forward(graph, problem);
  }
  return graph.finish(handle);
}

}  // namespace llmtrain::kernels::cuda
