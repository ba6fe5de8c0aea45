#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/models/hf_config.hpp"
#include "tests/unit/models/hf_config_fixture.hpp"

namespace llmtrain::models {

TEST_CASE("a written config.json says the same model") {
  DecoderSpec gpt2 = spec_from_hf_config(R"({"model_type": "gpt2"})", "test");
  gpt2.num_attention_heads = gpt2.num_key_value_heads = 16;
  gpt2.head_dim = 48;
  gpt2.intermediate_size = 1000;
  gpt2.norm.eps = 1e-3;
  gpt2.activation = kernels::Activation::relu;
  gpt2.tie_word_embeddings = false;
  DecoderSpec mistral = llama_spec_for_test();
  mistral.qkv_bias = mistral.attention_output_bias = false;
  DecoderSpec qwen2 = llama_spec_for_test();
  qwen2.attention_output_bias = false;
  qwen2.head_dim = qwen2.hidden_size / qwen2.num_attention_heads;
  qwen2.first_window_layer = 1;
  DecoderSpec windowed = qwen2;
  windowed.sliding_window = mistral.sliding_window = 7;
  DecoderSpec qwen3 = windowed;
  qwen3.qk_norm = true;
  qwen3.qkv_bias = false;
  qwen3.rope_scaling = {.type = "yarn",
                        .factor = 4,
                        .original_max_position_embeddings = 32,
                        .beta_fast = 16,
                        .truncate = false,
                        .attention_factor = 1.5};
  DecoderSpec llama3 = llama_spec_for_test();
  llama3.rope_scaling = {.type = "llama3",
                         .factor = 8,
                         .original_max_position_embeddings = 64,
                         .low_freq_factor = 2,
                         .high_freq_factor = 5};
  DecoderSpec gemma2 = mistral;
  gemma2.norm.weight_offset = 1;
  gemma2.post_norms = true;
  gemma2.embedding_scale = std::sqrt(static_cast<double>(gemma2.hidden_size));
  gemma2.window_period = 2;
  gemma2.attention_scale = 1 / std::sqrt(144.0);
  gemma2.logit_softcap = 20.5;
  DecoderSpec mpt = gpt2;
  mpt.learned_positions = false;
  mpt.norm_bias = mpt.qkv_bias = mpt.attention_output_bias = mpt.mlp_bias = false;
  mpt.activation = kernels::Activation::gelu;
  mpt.intermediate_size = 4 * mpt.hidden_size;
  mpt.alibi_bias_max = 8;
  mpt.attention_scale = 0.3;
  DecoderSpec gpt_oss = mistral;
  gpt_oss.attention_sinks = true;
  gpt_oss.window_period = 2;
  gpt_oss.qkv_bias = gpt_oss.attention_output_bias = true;
  DecoderSpec dynamic = llama_spec_for_test();
  dynamic.rope_scaling = {.type = "dynamic", .factor = 2};
  const std::pair<const Architecture*, DecoderSpec> cases[] = {
      {&kGpt2, gpt2},       {&kGemma2, gemma2},
      {&kMpt, mpt},         {&kGptOssDense, gpt_oss},
      {&kQwen3, qwen3},     {&kLlama, llama3},
      {&kLlama, dynamic},   {&kLlama, llama_spec_for_test()},
      {&kMistral, mistral}, {&kQwen2, qwen2},
      {&kQwen2, windowed}};
  for (const auto& [row, spec] : cases) {
    const std::string json = row->hf_config(spec, {.dtype = DType::bf16, .eos_token_id = 5});
    CHECK(contains(json, R"("dtype": "bfloat16")"));
    CHECK(contains(json, R"("eos_token_id": 5)"));
    CHECK(contains(json, R"("bos_token_id": null)"));
    const DecoderSpec again = spec_from_hf_config(json, "written");
    CHECK(computed_difference(again, spec) == "");
    CHECK(again.vocab_size == spec.vocab_size);
    CHECK(again.intermediate_size == spec.intermediate_size);
    CHECK(again.qkv_bias == spec.qkv_bias);
    CHECK(again.qk_norm == spec.qk_norm);
    CHECK(again.rope_scaling == spec.rope_scaling);
    CHECK(again.attention_output_bias == spec.attention_output_bias);
    CHECK(again.first_window_layer == spec.first_window_layer);
    CHECK(again.mlp_bias == spec.mlp_bias);
    CHECK(again.max_position_embeddings == spec.max_position_embeddings);
    CHECK(again.attention_dropout == spec.attention_dropout);
  }
}

TEST_CASE("a model that transformers cannot express is not written") {
  DecoderSpec gpt2 = spec_from_hf_config(R"({"model_type": "gpt2"})", "test");
  gpt2.head_dim = 32;
  CHECK_THROWS_AS(kGpt2.hf_config(gpt2, {}), RecipeError);
  DecoderSpec llama = llama_spec_for_test();
  llama.hidden_size = 50;
  CHECK_THROWS_AS(kLlama.hf_config(llama, {}), RecipeError);
}

TEST_CASE("differences are named, whether shapes show them or not") {
  const DecoderSpec a = llama_spec_for_test();
  DecoderSpec b = a;
  CHECK(computed_difference(a, b) == "");
  b.hidden_size = 49;
  b.intermediate_size = 21;
  b.qkv_bias = false;
  CHECK(computed_difference(a, b) ==
        "hidden_size 48 and 49, intermediate_size 20 and 21, attention_bias true and false");
  b = a;
  b.max_position_embeddings = 99;
  CHECK(computed_difference(a, b) == "");  // a Llama computes the same
  b.learned_positions = true;
  CHECK(contains(computed_difference(b, a), "max_position_embeddings 99 and 2048"));
  b = a;
  b.rope_theta = 10000;
  b.num_attention_heads = 8;
  CHECK(computed_difference(a, b) == "num_attention_heads 4 and 8, rope_theta 12345.5 and 10000");
  b = a;
  b.rope_scaling = {.type = "linear", .factor = 2};
  CHECK(computed_difference(a, b) == "rope_scaling default and linear, factor 2");
  b = a;
  b.sliding_window = 9;
  b.first_window_layer = 1;
  CHECK(computed_difference(a, b) == "window of layer 1 0 and 9");
}

}  // namespace llmtrain::models
