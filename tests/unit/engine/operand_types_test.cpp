// What of a step stays in fp32 where compute is half as wide: the table in docs/precision.md.
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/activations.hpp"
#include "kernels/attention.hpp"
#include "kernels/experts.hpp"
#include "kernels/head_norm_rope.hpp"
#include "kernels/loss.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/router.hpp"
#include "kernels/scale_rows.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::int64_t kVocabulary = 61, kExperts = 6;

constexpr std::string_view kModels[] = {
    "architecture: gpt2, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 2",
    "architecture: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2, "
    "num_attention_heads: 2",
    "architecture: dots1, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2, "
    "num_attention_heads: 2, n_routed_experts: 6, num_experts_per_tok: 2, "
    "moe_intermediate_size: 12, bias_update_speed: 0.03125"};

using Operands = std::vector<std::pair<std::string_view, View>>;

/// Which product it is: heads and routers are told by their numbers of classes and experts.
std::string_view kind_of(const kernels::Matmul& product) {
  if (product.transpose_a) return "weight gradient";
  if (!product.transpose_b) return "input gradient";
  return product.n() == kVocabulary ? "head" : product.n() == kExperts ? "router" : "linear";
}

std::string_view kind_of(const kernels::GroupedMatmul& product) {
  switch (product.product) {
    case kernels::GroupedProduct::forward:
      return "experts";
    case kernels::GroupedProduct::input_grad:
      return "experts' input gradient";
    case kernels::GroupedProduct::weight_grad:
      return "experts' weight gradient";
  }
  return "";
}

/// "norm_forward: x compute", for all operands of a step's launches that are numbers of the model.
class Types final : public kernels::Recorder {
 public:
  explicit Types(DType compute) : compute_(compute) {}
  std::set<std::string> found;

  void record(const kernels::LaunchRecord& launch) override {
    using namespace kernels;
    on<NormForward>(launch, [](const auto& k) {
      return Operands{{"x", k.x},           {"residual", k.residual}, {"sum", k.sum},
                      {"weight", k.weight}, {"bias", k.bias},         {"y", k.y},
                      {"mean", k.mean},     {"rstd", k.rstd}};
    });
    on<NormBackward>(launch, [](const auto& k) {
      return Operands{{"dy", k.dy},           {"dsum", k.dsum},  {"s", k.s},
                      {"mean", k.mean},       {"rstd", k.rstd},  {"dx", k.dx},
                      {"dweight", k.dweight}, {"dbias", k.dbias}};
    });
    on<HeadNormRope>(launch, [](const auto& k) {
      return Operands{{"x", k.x}, {"y", k.y}, {"rstd", k.rstd}, {"cosine", k.heads.cosine}};
    });
    on<HeadNormRopeBackward>(launch, [](const auto& k) {
      return Operands{{"dy", k.dy}, {"dx", k.dx}, {"dq_weight", k.dq_weight}};
    });
    on<Rope>(launch, [](const auto& k) {
      return Operands{{"x", k.x}, {"y", k.y}, {"cosine", k.cosine}, {"sine", k.sine}};
    });
    on<AttentionForward>(launch, [](const auto& k) {
      return Operands{{"q", k.q}, {"k", k.k}, {"v", k.v}, {"out", k.out}, {"lse", k.lse}};
    });
    on<AttentionBackward>(launch, [](const auto& k) {
      return Operands{{"dout", k.dout}, {"lse", k.lse}, {"dq", k.dq}, {"dk", k.dk}, {"dv", k.dv}};
    });
    on<EmbeddingForward>(launch, [](const auto& k) {
      return Operands{{"table", k.table}, {"y", k.y}};
    });
    on<EmbeddingBackward>(launch, [](const auto& k) {
      return Operands{{"dy", k.dy}, {"dtable", k.dtable}};
    });
    on<Add>(launch, [](const auto& k) { return Operands{{"a", k.a}, {"b", k.b}, {"y", k.y}}; });
    on<ActivationForward>(launch, [](const auto& k) {
      return Operands{{"x", k.x}, {"up", k.up}, {"y", k.y}};
    });
    on<ActivationBackward>(launch, [](const auto& k) {
      return Operands{{"dy", k.dy}, {"dx", k.dx}, {"dup", k.dup}};
    });
    record_products(launch);
    record_ends(launch);
  }

 private:
  void record_products(const kernels::LaunchRecord& launch) {
    using namespace kernels;
    if (launch.name == Matmul::name) {
      const auto& k = *static_cast<const Matmul*>(launch.kernel);
      add(kind_of(k), {{"a", k.a}, {"b", k.b}, {"c", k.c}, {"bias", k.bias}});
    }
    if (launch.name == GroupedMatmul::name) {
      const auto& k = *static_cast<const GroupedMatmul*>(launch.kernel);
      add(kind_of(k), {{"a", k.a}, {"b", k.b}, {"c", k.c}});
    }
    on<ScaleRows>(launch, [](const auto& k) {
      return Operands{{"x", k.x}, {"weight", k.weight}, {"y", k.y}};
    });
    on<ScaleRowsBackward>(launch, [](const auto& k) {
      return Operands{{"dx", k.dx}, {"dweight", k.dweight}};
    });
    on<RouteTokens>(launch, [](const auto& k) {
      return Operands{{"logits", k.logits}, {"bias", k.bias}, {"weight", k.weight}};
    });
    on<RouteTokensBackward>(launch, [](const auto& k) {
      return Operands{{"dweight", k.dweight}, {"dlogits", k.dlogits}, {"values", k.values}};
    });
  }

  void record_ends(const kernels::LaunchRecord& launch) {
    using namespace kernels;
    on<CrossEntropy>(launch, [](const auto& k) {
      return Operands{{"logits", k.logits}, {"loss", k.loss}, {"dlogits", k.dlogits}};
    });
    on<Sum>(launch, [](const auto& k) { return Operands{{"x", k.x}, {"out", k.out}}; });
    on<SquaredNorm>(launch, [](const auto& k) {
      return Operands{{"gradient", k.gradients.front()}};
    });
    on<AdamUpdate>(launch, [](const auto& k) {
      const AdamTensors& first = k.tensors.front();
      return Operands{{"parameter", first.to.parameter},
                      {"gradient", first.to.gradient},
                      {"compute_copy", first.to.compute_copy},
                      {"m", first.m},
                      {"v", first.v}};
    });
  }

  template <class K, class F>
  void on(const kernels::LaunchRecord& launch, const F& operands) {
    if (launch.name == K::name) add(K::name, operands(*static_cast<const K*>(launch.kernel)));
  }

  void add(std::string_view kernel, const Operands& operands) {
    for (const auto& [operand, view] : operands) {
      if (!view.defined()) continue;
      found.insert(fmt::format("{}: {} {}", kernel, operand,
                               view.dtype == compute_ ? "compute" : to_string(view.dtype)));
    }
  }

  DType compute_;
};

std::set<std::string> types_of(std::string_view compute) {
  Types types(compute == "bf16" ? DType::bf16 : DType::f16);
  for (const std::string_view model : kModels) {
    test::EngineRecipe recipe;
    recipe::load(recipe, {.file = "test.yaml",
                          .text = fmt::format("recipe: 1\n"
                                              "model: {{{}, vocab_size: {}, "
                                              "max_position_embeddings: 16}}\n"
                                              "training: {{seq_len: 10, micro_batch_size: 2, "
                                              "global_batch_size: 4, max_steps: 10}}\n"
                                              "precision: {{compute: {}}}\n"
                                              "optimizer: {{lr: 1.0e-2}}\n",
                                              model, kVocabulary, compute)});
    Device device(make_meta_memory(), std::uint64_t{1} << 28);
    Engine engine(
        EnginePlace{.device = &device, .table = &kernels::meta_table(), .recorder = &types},
        recipe.options(7));
    engine.initialize();
    engine.train_step(StepBatch::planned(4, 10), 1, 1.0);
  }
  return types.found;
}

/// In fp32, or fp64. All else is in the type of compute.
const std::set<std::string> kWide = {"norm_forward: mean fp32",
                                     "norm_forward: rstd fp32",
                                     "norm_backward: mean fp32",
                                     "norm_backward: rstd fp32",
                                     "norm_backward: dweight fp32",
                                     "norm_backward: dbias fp32",
                                     "head_norm_rope: rstd fp32",
                                     "head_norm_rope: cosine fp32",
                                     "head_norm_rope_backward: dq_weight fp32",
                                     "rope: cosine fp32",
                                     "rope: sine fp32",
                                     "attention_forward: lse fp32",
                                     "attention_backward: lse fp32",
                                     "embedding_backward: dtable fp32",
                                     "weight gradient: c fp32",
                                     "experts' weight gradient: c fp32",
                                     "head: c fp32",
                                     "cross_entropy: logits fp32",
                                     "cross_entropy: loss fp32",
                                     "sum: x fp32",
                                     "sum: out fp64",
                                     "router: c fp32",
                                     "route_tokens: logits fp32",
                                     "route_tokens: bias fp32",
                                     "route_tokens: weight fp32",
                                     "route_tokens_backward: dweight fp32",
                                     "route_tokens_backward: values fp32",
                                     "scale_rows: weight fp32",
                                     "scale_rows_backward: dweight fp32",
                                     "squared_norm: gradient fp32",
                                     "adam_update: parameter fp32",
                                     "adam_update: gradient fp32",
                                     "adam_update: m fp32",
                                     "adam_update: v fp32"};

const std::set<std::string> kNarrow = {"norm_forward: x compute",
                                       "norm_forward: residual compute",
                                       "norm_forward: sum compute",
                                       "norm_forward: weight compute",
                                       "norm_forward: bias compute",
                                       "norm_forward: y compute",
                                       "norm_backward: dy compute",
                                       "norm_backward: dsum compute",
                                       "norm_backward: s compute",
                                       "norm_backward: dx compute",
                                       "head_norm_rope: x compute",
                                       "head_norm_rope: y compute",
                                       "head_norm_rope_backward: dy compute",
                                       "head_norm_rope_backward: dx compute",
                                       "rope: x compute",
                                       "rope: y compute",
                                       "attention_forward: q compute",
                                       "attention_forward: k compute",
                                       "attention_forward: v compute",
                                       "attention_forward: out compute",
                                       "attention_backward: dout compute",
                                       "attention_backward: dq compute",
                                       "attention_backward: dk compute",
                                       "attention_backward: dv compute",
                                       "embedding_forward: table compute",
                                       "embedding_forward: y compute",
                                       "embedding_backward: dy compute",
                                       "add: a compute",
                                       "add: b compute",
                                       "add: y compute",
                                       "activation_forward: x compute",
                                       "activation_forward: up compute",
                                       "activation_forward: y compute",
                                       "activation_backward: dy compute",
                                       "activation_backward: dx compute",
                                       "activation_backward: dup compute",
                                       "linear: a compute",
                                       "linear: b compute",
                                       "linear: c compute",
                                       "linear: bias compute",
                                       "input gradient: a compute",
                                       "input gradient: b compute",
                                       "input gradient: c compute",
                                       "weight gradient: a compute",
                                       "weight gradient: b compute",
                                       "head: a compute",
                                       "head: b compute",
                                       "router: a compute",
                                       "router: b compute",
                                       "experts: a compute",
                                       "experts: b compute",
                                       "experts: c compute",
                                       "experts' input gradient: a compute",
                                       "experts' input gradient: b compute",
                                       "experts' input gradient: c compute",
                                       "experts' weight gradient: a compute",
                                       "experts' weight gradient: b compute",
                                       "scale_rows: x compute",
                                       "scale_rows: y compute",
                                       "scale_rows_backward: dx compute",
                                       "route_tokens_backward: dlogits compute",
                                       "cross_entropy: dlogits compute",
                                       "adam_update: compute_copy compute"};

}  // namespace

TEST_CASE(
    "where compute is bf16 or fp16, these operands of a step are fp32 and all others are not") {
  for (const std::string_view compute : {"bf16", "fp16"}) {
    CAPTURE(compute);
    std::set<std::string> expected = kWide;
    expected.insert(kNarrow.begin(), kNarrow.end());
    const std::set<std::string> found = types_of(compute);
    for (const std::string& text : found)
      CHECK_MESSAGE(expected.contains(text), "unexpected: ", text);
    for (const std::string& text : expected) CHECK_MESSAGE(found.contains(text), "missing: ", text);
  }
}

}  // namespace llmtrain::engine
