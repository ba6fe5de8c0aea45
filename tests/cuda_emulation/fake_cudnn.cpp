// cuDNN's backend API for the emulated GPU: descriptors with their rules, engines, plans. What it
// believes of the real one stands in fake_cudnn.hpp.
#include "tests/cuda_emulation/fake_cudnn.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/fake_cudnn_graph.hpp"

struct cudnnContext {
  std::uint64_t alive = 0x616c697665;
  cudaStream_t stream = nullptr;
};

namespace fake_cudnn {

void die(const char* what, long which) {
  std::fprintf(stderr, "fake cuDNN: %s (%ld)\n", what, which);
  std::abort();
}

namespace {

FakeCudnn& fake() {
  static FakeCudnn fake = [] {
    FakeCudnn initial;
    const char* const mode = std::getenv("LLMTRAIN_FAKE_CUDNN");
    const std::string_view name = mode != nullptr ? mode : "takes";
    if (name == "refuses") initial.mode = FakeCudnn::Mode::refuses;
    if (name == "fickle") initial.mode = FakeCudnn::Mode::fickle;
    if (name == "old") initial.mode = FakeCudnn::Mode::old;
    return initial;
  }();
  return fake;
}

std::string last_error;

cudnnStatus_t refuse(cudnnStatus_t status, std::string why) {
  last_error = std::move(why);
  return status;
}

/// An attribute that may be set, how many elements it may have, and whether it must be set.
struct Rule {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t most;
  bool required;
};

constexpr std::int64_t kMany = 1000;
constexpr Rule kRules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 8, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, true},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
     true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
     1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, kMany, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
     true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
     1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
     kMany, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, kMany, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
     1, true},
};

std::size_t size_of(cudnnBackendAttributeType_t type) {
  if (type == CUDNN_TYPE_BOOLEAN) return 1;
  const bool wide = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ||
                    type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  return wide ? 8 : 4;
}

/// A descriptor that a caller holds.
Reference& held(cudnnBackendDescriptor_t descriptor) {
  if (descriptor == nullptr) die("a null descriptor");
  return *static_cast<Reference*>(descriptor);
}

void check_handle(cudnnHandle_t handle) {
  if (handle == nullptr || handle->alive != cudnnContext{}.alive) die("no handle");
}

// ---- Engines
// -------------------------------------------------------------------------------------------------

/// Not set by callers: what an engine config, and from it a plan, holds.
struct Engine {
  std::int64_t index = 0, workspace_bytes = 0;
  bool deterministic = true;
};

/// In the order of the heuristic. The first of a backward is one whose sums have no order.
std::vector<Engine> engines_of(const Graph& graph) {
  std::vector<Engine> engines;
  if (fake().mode == FakeCudnn::Mode::refuses || !graph.refusal().empty()) return engines;
  const std::int64_t bytes = graph.workspace_bytes();
  if (graph.is_backward()) engines.push_back({9, 0, false});
  engines.push_back({graph.is_backward() ? 6 : 2, bytes, true});
  engines.push_back({graph.is_backward() ? 7 : 1, bytes, true});
  return engines;
}

/// Where a config keeps its engine and its graph.
constexpr auto kEngine = CUDNN_ATTR_ENGINECFG_ENGINE;
constexpr auto kGraph = CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH;

void put_engine(Descriptor& d, const Engine& engine, const Reference& graph) {
  Value value;
  value.bytes.resize(sizeof(engine));
  std::memcpy(value.bytes.data(), &engine, sizeof(engine));
  d.values.insert_or_assign(kEngine, std::move(value));
  d.values.insert_or_assign(kGraph, Value{.references = {graph}});
  d.finalized = true;
}
Engine engine_of(const Descriptor& d) { return d.one<Engine>(kEngine); }

cudnnStatus_t finalize_plan(Descriptor& plan) {
  const Descriptor& config = *plan.reference(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Engine engine = engine_of(config);
  if (fake().mode == FakeCudnn::Mode::fickle && (engine.index == 2 || engine.index == 6)) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this engine is fickle");
  }
  put_engine(plan, engine, config.reference(kGraph));
  ++fake().plans;
  return CUDNN_STATUS_SUCCESS;
}

std::int64_t read_configs(const Descriptor& heuristic, std::int64_t requested, void* values) {
  const Reference& graph = heuristic.reference(kGraph);
  const std::vector<Engine> engines = engines_of(Graph(*graph));
  auto* const into = static_cast<cudnnBackendDescriptor_t*>(values);
  for (std::size_t i = 0; i < engines.size() && static_cast<std::int64_t>(i) < requested; ++i) {
    put_engine(*held(into[i]), engines[i], graph);
  }
  return static_cast<std::int64_t>(engines.size());
}

/// Whether a tensor in memory and a workspace share bytes.
bool overlap(const Tensor& tensor, const void* data, const void* workspace, std::int64_t bytes) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (tensor.dims[d] - 1) * tensor.strides[d];
  const auto* const begin = static_cast<const std::byte*>(data);
  const auto* const end = begin + (last + 1) * (is_half_width(tensor.type) ? 2 : 4);
  const auto* const from = static_cast<const std::byte*>(workspace);
  return begin < from + bytes && from < end;
}

void check_pack(const Graph& graph, const std::map<std::int64_t, void*>& data,
                const void* workspace, std::int64_t workspace_bytes) {
  for (const auto& [uid, tensor] : graph.operands()) {
    const auto known = data.find(uid);
    if (known == data.end() || known->second == nullptr) die("a tensor without an address", uid);
    const auto address = reinterpret_cast<std::uintptr_t>(known->second);
    if (tensor.by_value) continue;
    if (address % 16 != 0) die("an address that is not aligned", uid);
    if (overlap(tensor, known->second, workspace, workspace_bytes)) {
      die("a workspace over a tensor", uid);
    }
  }
  for (const auto& [uid, pointer] : data) {
    if (graph.operands().count(uid) == 0) die("an address of a tensor that is not there", uid);
  }
}

}  // namespace

}  // namespace fake_cudnn

using namespace fake_cudnn;

extern "C" __attribute__((visibility("default"))) FakeCudnn* fake_cudnn_state() { return &fake(); }

std::size_t cudnnGetVersion() { return fake().mode == FakeCudnn::Mode::old ? 91000 : 91900; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported" : "an error of the fake cuDNN";
}
void cudnnGetLastErrorString(char* message, std::size_t max_size) {
  std::snprintf(message, max_size, "%s\n", std::exchange(last_error, {}).c_str());
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  ++fake().handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  check_handle(handle);
  handle->alive = 0;
  delete handle;
  --fake().handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  check_handle(handle);
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Reference(std::make_shared<Descriptor>(Descriptor{.type = type}));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &held(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  Descriptor& d = *held(descriptor);
  if (d.finalized) die("an attribute of what is finalized", name);
  const auto rule = std::find_if(std::begin(kRules), std::end(kRules),
                                 [&](const Rule& r) { return r.of == d.type && r.name == name; });
  if (rule == std::end(kRules)) die("an attribute that this descriptor has not", name);
  if (rule->type != type) die("an attribute of another type", name);
  if (count < 1 || count > rule->most || values == nullptr) die("so many elements", count);
  Value value{.type = type};
  value.bytes.resize(static_cast<std::size_t>(count) * fake_cudnn::size_of(type));
  std::memcpy(value.bytes.data(), values, value.bytes.size());
  if (type == CUDNN_TYPE_HANDLE) check_handle(*static_cast<const cudnnHandle_t*>(values));
  for (std::int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; ++i) {
    const Reference& to = held(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
    if (!to->finalized) die("a reference to what is not finalized", name);
    value.references.push_back(to);
  }
  d.values.insert_or_assign(name, std::move(value));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& d = *held(descriptor);
  if (d.finalized) die("finalized twice", d.type);
  for (const Rule& rule : kRules) {
    if (rule.of == d.type && rule.required && !d.has(rule.name)) die("without", rule.name);
  }
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return finalize_plan(d);
  if (d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) Graph{d};
  if (d.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) ++fake().heuristics;
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t requested,
                                       std::int64_t* count, void* values) {
  Descriptor& d = *held(descriptor);
  if (!d.finalized) die("a question to what is not finalized", name);
  *count = 1;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      *count = read_configs(d, requested, values);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      put_engine(*held(*static_cast<cudnnBackendDescriptor_t*>(values)), engine_of(d),
                 d.reference(kGraph));
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      *static_cast<std::int64_t*>(values) = engine_of(d).index;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      auto* const notes = static_cast<cudnnBackendNumericalNote_t*>(values);
      notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      if (!engine_of(d).deterministic) notes[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
      *count = engine_of(d).deterministic ? 1 : 2;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      *static_cast<std::int64_t*>(values) = engine_of(d).workspace_bytes;
      return CUDNN_STATUS_SUCCESS;
    default:
      die("a question that is not answered here", name);
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                                  cudnnBackendDescriptor_t pack_descriptor) {
  check_handle(handle);
  const Descriptor &plan = *held(plan_descriptor), &pack = *held(pack_descriptor);
  if (!plan.finalized || !pack.finalized) die("what is not finalized does not run");
  const auto graph = std::make_shared<Graph>(*plan.reference(kGraph));
  const auto names = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (names.size() != pointers.size()) die("names without addresses");
  std::map<std::int64_t, void*> data;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!data.emplace(names[i], pointers[i]).second) die("a tensor with two addresses", names[i]);
  }
  auto* const workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const Engine engine = engine_of(plan);
  check_pack(*graph, data, workspace, engine.workspace_bytes);
  // What is given by value is read now, and lives as long as the work.
  auto scalars = std::make_shared<std::map<std::int64_t, float>>();
  for (const auto& [uid, tensor] : graph->operands()) {
    if (tensor.by_value) {
      float& copy = (*scalars)[uid] = *static_cast<const float*>(data.at(uid));
      data.at(uid) = &copy;
    }
  }
  if (engine.workspace_bytes > 0 &&
      (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)) {
    die("a workspace that is not aligned");
  }
  ++fake().executed;
  fake().engine = engine.index;
  simt::enqueue_call(handle->stream, [graph, data, scalars, workspace, engine] {
    std::memset(workspace, 0xff, static_cast<std::size_t>(engine.workspace_bytes));
    graph->run(data);
    simt::pass_time(simt::kLaunchMicroseconds);
  });
  return CUDNN_STATUS_SUCCESS;
}
