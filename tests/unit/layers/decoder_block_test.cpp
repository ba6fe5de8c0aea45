#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "lib/models/decoder.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/rounding_table.hpp"

namespace llmtrain::test {

namespace {

models::DecoderSpec gpt2_like(double dropout = 0) {
  models::DecoderSpec spec;
  spec.hidden_size = 8;
  spec.intermediate_size = 12;
  spec.num_hidden_layers = 2;
  spec.num_attention_heads = spec.num_key_value_heads = 2;
  spec.head_dim = 4;
  spec.norm = {kernels::NormKind::layer_norm, 1e-5};
  spec.norm_bias = spec.qkv_bias = spec.attention_output_bias = spec.mlp_bias = true;
  spec.activation = kernels::Activation::gelu_pytorch_tanh;
  spec.learned_positions = true;
  spec.attention_dropout = spec.residual_dropout = dropout;
  return spec;
}

models::DecoderSpec llama_like() {
  models::DecoderSpec spec;
  spec.hidden_size = 8;
  spec.intermediate_size = 10;
  spec.num_hidden_layers = 2;
  spec.num_attention_heads = 4;
  spec.num_key_value_heads = 2;
  spec.head_dim = 6;
  spec.norm = {kernels::NormKind::rms_norm, 1e-6};
  spec.activation = kernels::Activation::silu;
  spec.gated_mlp = true;
  return spec;
}

struct Blocks {
  ops::RopeTables tables;
  models::DecoderBlock first, second;

  Blocks(Place& place, const models::DecoderSpec& spec)
      : tables(place.rope_tables(spec.head_dim)),
        first(place.store(), spec, 0, spec.learned_positions ? nullptr : &tables),
        second(place.store(), spec, 1, spec.learned_positions ? nullptr : &tables) {}
};

enum class Recompute { none, each, both };

// Two blocks; `both` nests a segment of each in a segment of the two.
Problem blocks(const models::DecoderSpec& spec, Recompute recompute = Recompute::none) {
  const RowLayout rows{.sequences = 2, .length = 5, .document_starts = {0, 3}};
  return {
      .rows = rows,
      .inputs = {{rows.rows(), spec.hidden_size}},
      .build = [=](Place& place) -> Forward {
        const auto two = std::make_shared<Blocks>(place, spec);
        const auto run = [=](const OpCtx& ctx, const models::DecoderBlock& block, const Var& x) {
          const auto body = [&block](const OpCtx& inner, const Var& in) {
            return block.forward(inner, in);
          };
          return recompute == Recompute::none ? body(ctx, x) : recompute_segment(ctx, x, body);
        };
        const auto all = [=](const OpCtx& ctx, const Var& x) {
          return run(ctx, two->second, run(ctx, two->first, x));
        };
        return [=](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
          return {
              {recompute == Recompute::both ? recompute_segment(ctx, x[0], all) : all(ctx, x[0])}};
        };
      }};
}

}  // namespace

TEST_CASE("the blocks of both families differentiate") {
  check_gradients(blocks(gpt2_like()));
  check_gradients(blocks(gpt2_like(0.2)));
  check_gradients(blocks(llama_like()));
}

TEST_CASE("the blocks of both families compute the same with the fast kernels") {
  check_fast_path(blocks(gpt2_like()));
  check_fast_path(blocks(llama_like()));
}

const std::vector<std::string> kRecomputed{"norm", "activation", "attention", "up_proj"};

TEST_CASE("no policy of what is computed again, or when, changes a bit of a block") {
  const TrialOptions kinds[] = {{.compute = DType::f64, .table = &kernels::cpu_table()},
                                {.compute = DType::f32, .table = &kernels::cpu_table()},
                                {.compute = DType::bf16, .table = &kernels::cpu_table()},
                                {.compute = DType::bf16, .table = &rounding_table()}};
  for (const models::DecoderSpec& spec : {gpt2_like(0.2), llama_like()}) {
    for (const TrialOptions& options : kinds) {
      CAPTURE(options.table->device());
      const TrialResult plain = run_trial(blocks(spec), options);
      for (const Recompute recompute : {Recompute::none, Recompute::each, Recompute::both}) {
        for (unsigned set = 0; set < 1U << kRecomputed.size(); ++set) {
          TrialOptions policy = options;
          for (std::size_t i = 0; i < kRecomputed.size(); ++i) {
            if ((set >> i & 1) != 0) policy.recomputed_ops.insert(kRecomputed[i]);
          }
          for (const WeightGrads when : {WeightGrads::now, WeightGrads::deferred}) {
            CAPTURE(set);
            policy.weight_grads = when;
            const TrialResult result = run_trial(blocks(spec, recompute), policy);
            check_same_bits(plain, result);
            CHECK(result.kept_bytes == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("each policy of what is computed again lowers the peak of a block") {
  for (const TrialOptions& options :
       {TrialOptions{}, TrialOptions{.compute = DType::bf16, .table = &rounding_table()}}) {
    CAPTURE(options.table->device());
    for (const models::DecoderSpec& spec : {gpt2_like(), llama_like()}) {
      const std::uint64_t plain = run_trial(blocks(spec), options).peak_bytes;
      CHECK(run_trial(blocks(spec, Recompute::each), options).peak_bytes < plain);
      CHECK(run_trial(blocks(spec, Recompute::both), options).peak_bytes < plain);
      for (const std::string& name : kRecomputed) {
        CAPTURE(name);
        TrialOptions policy = options;
        policy.recomputed_ops = {name};
        CHECK(run_trial(blocks(spec), policy).peak_bytes < plain);
      }
    }
  }
}

}  // namespace llmtrain::test
