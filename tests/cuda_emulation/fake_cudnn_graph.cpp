#include "tests/cuda_emulation/fake_cudnn_graph.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/tensor/dtype.hpp"

namespace fake_cudnn {

namespace {

Tensor tensor_of(const Reference& descriptor) {
  const Descriptor& d = *descriptor;
  Tensor tensor{.uid = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .type = d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
                .is_virtual = d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                .by_value = d.one<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
  const auto dims = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (dims.size() != 4 || strides.size() != 4) die("a tensor that has not 4 dims", tensor.uid);
  std::copy(dims.begin(), dims.end(), tensor.dims.begin());
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  for (const std::int64_t dim : dims) {
    if (dim <= 0) die("an empty tensor", tensor.uid);
  }
  if (tensor.is_virtual && tensor.by_value) die("a virtual tensor by value", tensor.uid);
  return tensor;
}

Operation operation_of(const Reference& descriptor) {
  const Descriptor& d = *descriptor;
  Operation operation{.kind = d.type};
  const auto input = [&](cudnnBackendAttributeName_t name) {
    if (d.has(name)) operation.inputs.push_back(tensor_of(d.reference(name)));
  };
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      input(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      input(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      operation.output = tensor_of(d.reference(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor& how = *d.reference(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      operation.mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
      if (operation.mode == CUDNN_POINTWISE_GEN_INDEX) {
        operation.axis = how.one<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
      }
      input(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      input(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      input(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      operation.output = tensor_of(d.reference(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      operation.reduction = d.reference(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                                ->one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
      input(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      operation.output = tensor_of(d.reference(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      input(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      operation.output = tensor_of(d.reference(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
      break;
    default:
      die("an operation that is none", d.type);
  }
  return operation;
}

// ---- Computing
// -----------------------------------------------------------------------------------------------

/// Elements in the order of dims, whatever the type.
using Elements = std::vector<float>;

float rounded(float x, cudnnDataType_t type) {
  if (type == CUDNN_DATA_HALF) return llmtrain::to_float(llmtrain::to_f16(x));
  if (type != CUDNN_DATA_BFLOAT16 || x != x) return x;
  const auto u = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u);
}

template <class F>
void for_all(const Dims& dims, F f) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < dims[0]; ++i) {
    for (std::int64_t j = 0; j < dims[1]; ++j) {
      for (std::int64_t k = 0; k < dims[2]; ++k) {
        for (std::int64_t l = 0; l < dims[3]; ++l) f(n++, Dims{i, j, k, l});
      }
    }
  }
}

std::int64_t place(const Dims& at, const Dims& strides) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
}

std::int64_t packed_place(const Dims& at, const Dims& dims) {
  return ((at[0] * dims[1] + at[1]) * dims[2] + at[2]) * dims[3] + at[3];
}

Elements load(const Tensor& t, const void* data) {
  Elements elements(static_cast<std::size_t>(t.numel()));
  for_all(t.dims, [&](std::int64_t n, const Dims& at) {
    const std::int64_t i = place(at, t.strides);
    float& x = elements[static_cast<std::size_t>(n)];
    if (t.type == CUDNN_DATA_FLOAT) x = static_cast<const float*>(data)[i];
    if (t.type == CUDNN_DATA_INT32) x = static_cast<float>(static_cast<const int*>(data)[i]);
    if (t.type == CUDNN_DATA_HALF) {
      x = llmtrain::to_float(static_cast<const llmtrain::f16*>(data)[i]);
    }
    if (t.type == CUDNN_DATA_BFLOAT16) {
      x = std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
    }
  });
  return elements;
}

void store(const Tensor& t, const Elements& elements, void* data) {
  for_all(t.dims, [&](std::int64_t n, const Dims& at) {
    const std::int64_t i = place(at, t.strides);
    const float x = elements[static_cast<std::size_t>(n)];
    if (t.type == CUDNN_DATA_FLOAT) static_cast<float*>(data)[i] = x;
    if (t.type == CUDNN_DATA_HALF) static_cast<llmtrain::f16*>(data)[i] = llmtrain::to_f16(x);
    if (t.type == CUDNN_DATA_BFLOAT16) {
      static_cast<std::uint16_t*>(data)[i] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    }
  });
}

/// Heads of b are shared by as many heads of a.
Elements multiply(const Operation& op, const Elements& a, const Elements& b) {
  const Tensor &ta = op.inputs[0], &tb = op.inputs[1], &tc = op.output;
  const std::int64_t depth = ta.dims[3];
  if (tb.dims[2] != depth || tc.dims[2] != ta.dims[2] || tc.dims[3] != tb.dims[3] ||
      tc.dims[1] != ta.dims[1] || ta.dims[1] % tb.dims[1] != 0 || tb.dims[0] != ta.dims[0]) {
    die("factors that do not fit, for the product", tc.uid);
  }
  Elements c(static_cast<std::size_t>(tc.numel()), 0.0f);
  const std::int64_t m = tc.dims[2], n = tc.dims[3];
  for (std::int64_t h = 0; h < tc.dims[0] * tc.dims[1]; ++h) {
    const std::int64_t shared =
        h / tc.dims[1] * tb.dims[1] + h % tc.dims[1] / (tc.dims[1] / tb.dims[1]);
    const float* const ah = a.data() + h * m * depth;
    const float* const bh = b.data() + shared * depth * n;
    float* const ch = c.data() + h * m * n;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t j = 0; j < n; ++j) ch[i * n + j] += ah[i * depth + k] * bh[k * n + j];
      }
    }
  }
  return c;
}

float combine(cudnnPointwiseMode_t mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_IDENTITY:
      return x;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_GT:
      return x > b ? 1 : 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      die("a pointwise mode that is not here", mode);
  }
}

Elements pointwise(const Operation& op, const std::vector<const Elements*>& inputs) {
  Elements y(static_cast<std::size_t>(op.output.numel()));
  for_all(op.output.dims, [&](std::int64_t n, const Dims& at) {
    if (op.mode == CUDNN_POINTWISE_GEN_INDEX) {
      y[static_cast<std::size_t>(n)] = static_cast<float>(at[static_cast<std::size_t>(op.axis)]);
      return;
    }
    std::array<float, 3> x{};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Dims& dims = op.inputs[i].dims;
      Dims from = at;
      for (std::size_t d = 0; d < 4; ++d) {
        if (dims[d] == 1) from[d] = 0;
        if (dims[d] != 1 && dims[d] != op.output.dims[d]) die("dims that do not fit", dims[d]);
      }
      x[i] = (*inputs[i])[static_cast<std::size_t>(packed_place(from, dims))];
    }
    y[static_cast<std::size_t>(n)] = combine(op.mode, x[0], x[1], x[2]);
  });
  return y;
}

/// Over rows, columns or groups of heads: what y has fewer of.
Elements reduce(const Operation& op, const Elements& x) {
  const bool adds = op.reduction == CUDNN_REDUCE_TENSOR_ADD;
  Elements y(static_cast<std::size_t>(op.output.numel()),
             adds ? 0.0f : -std::numeric_limits<float>::infinity());
  const Dims &from = op.inputs[0].dims, &to = op.output.dims;
  for_all(from, [&](std::int64_t n, const Dims& at) {
    Dims into{};
    for (std::size_t d = 0; d < 4; ++d) into[d] = at[d] / (from[d] / to[d]);
    float& sum = y[static_cast<std::size_t>(packed_place(into, to))];
    const float value = x[static_cast<std::size_t>(n)];
    sum = adds ? sum + value : std::max(sum, value);
  });
  return y;
}

Elements transpose(const Operation& op, const Elements& x) {
  const Tensor &from = op.inputs[0], &to = op.output;
  const auto turned = [](Dims d) {
    std::swap(d[2], d[3]);
    return d;
  };
  if (turned(from.dims) != to.dims || turned(from.strides) != to.strides) {
    die("a reshape that does not exchange rows and columns", to.uid);
  }
  Elements y(x.size());
  for_all(to.dims, [&](std::int64_t n, const Dims& at) {
    y[static_cast<std::size_t>(n)] =
        x[static_cast<std::size_t>(packed_place(turned(at), from.dims))];
  });
  return y;
}

}  // namespace

Graph::Graph(const Descriptor& descriptor) {
  std::map<std::int64_t, Tensor> seen;
  std::map<std::int64_t, bool> made;
  const auto meet = [&](const Tensor& t) {
    const auto [entry, is_new] = seen.emplace(t.uid, t);
    if (!is_new && !(entry->second == t)) die("two tensors of one name", t.uid);
    if (!t.is_virtual) operands_.emplace(t.uid, t);
  };
  for (const Reference& reference :
       descriptor.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).references) {
    operations_.push_back(operation_of(reference));
    const Operation& op = operations_.back();
    for (const Tensor& t : op.inputs) {
      meet(t);
      if (t.is_virtual && !made[t.uid]) die("a virtual tensor before it is made", t.uid);
    }
    meet(op.output);
    if (std::exchange(made[op.output.uid], true)) die("a tensor that is made twice", op.output.uid);
  }
}

std::int64_t Graph::products() const {
  return std::count_if(operations_.begin(), operations_.end(), [](const Operation& op) {
    return op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
  });
}

const Operation& Graph::product(std::int64_t n) const {
  for (const Operation& op : operations_) {
    if (op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && n-- == 0) return op;
  }
  die("no such product", static_cast<long>(n));
}

bool is_half_width(cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF;
}

bool Graph::adds_in_any_order() const {
  return is_backward() && product(4).output.type == CUDNN_DATA_FLOAT;
}

std::string Graph::refusal() const {
  if (products() != 2 && products() != 5) return "no attention";
  const Tensor &q = product(0).inputs[0], &kt = product(0).inputs[1];
  if (q.dims[3] % 8 != 0 || q.dims[3] > 256) return "head_dim";
  if (kt.strides[2] != 1 || q.strides[3] != 1) return "the layout of q or k";
  if (is_backward() && q.dims[2] == 1) return "a backward of single rows";
  for (const auto& [uid, t] : operands_) {
    const bool is_matrix = is_half_width(t.type);
    for (std::size_t d = 0; is_matrix && d < 4; ++d) {
      if (t.strides[d] != 1 && t.strides[d] % 8 != 0) return "strides";
    }
  }
  // Before they are compared, columns are an index, not a tensor.
  for (const Operation& op : operations_) {
    const bool compares = op.mode == CUDNN_POINTWISE_CMP_GE || op.mode == CUDNN_POINTWISE_CMP_GT;
    if (op.kind != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || !compares) continue;
    if (!op.inputs[0].is_virtual) return "a comparison that begins with a tensor";
    if (!op.inputs[1].is_virtual && op.inputs[1].type != CUDNN_DATA_INT32) {
      return "a comparison with another type";
    }
  }
  return {};
}

std::int64_t Graph::workspace_bytes() const {
  constexpr std::int64_t kBase = 256;
  if (!is_backward()) return kBase;
  const Tensor &q = product(0).inputs[0], &kt = product(0).inputs[1];
  const std::int64_t heads = q.dims[0] * q.dims[1], rows = (q.dims[2] + 63) / 64 * 64;
  std::int64_t bytes = kBase;
  if (!adds_in_any_order()) bytes += heads * rows * rows * 2;
  if (q.dims[1] != kt.dims[1]) bytes += 2 * heads * rows * q.dims[3] * 2;
  return bytes;
}

void Graph::run(const std::map<std::int64_t, void*>& data) const {
  std::map<std::int64_t, Elements> values;
  const auto value = [&](const Tensor& t) -> const Elements& {
    const auto known = values.find(t.uid);
    if (known != values.end()) return known->second;
    return values.emplace(t.uid, load(t, data.at(t.uid))).first->second;
  };
  for (const Operation& op : operations_) {
    std::vector<const Elements*> inputs;
    for (const Tensor& t : op.inputs) inputs.push_back(&value(t));
    Elements y;
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        y = multiply(op, *inputs[0], *inputs[1]);
        break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        y = reduce(op, *inputs[0]);
        break;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        y = transpose(op, *inputs[0]);
        break;
      default:
        y = pointwise(op, inputs);
    }
    for (float& x : y) x = rounded(x, op.output.type);
    if (!op.output.is_virtual) store(op.output, y, data.at(op.output.uid));
    values.insert_or_assign(op.output.uid, std::move(y));
  }
}

}  // namespace fake_cudnn
