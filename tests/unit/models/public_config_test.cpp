// config.json texts in the manner of published ones, with the keys that publishers write: one that
// changes nothing must not keep anybody from opening the model. Written from memory, not copied.
#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/models/architecture.hpp"

namespace llmtrain::models {

namespace {

struct PublicConfig {
  const char* name;
  std::int64_t layers, hidden, intermediate, kv_heads;
  const char* json;
};

const PublicConfig kGptConfigs[] = {{"gpt2", 12, 768, 3072, 12, R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257})"},
                                    {"gpt2-xl", 48, 1600, 6400, 25, R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25,
  "n_layer": 48, "n_positions": 1024, "output_past": true, "resid_pdrop": 0.1,
  "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
  "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257})"},
                                    {"distilgpt2", 6, 768, 3072, 12, R"({
  "_num_labels": 1, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
  "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02, "label2id": {"LABEL_0": 0},
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 6, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257})"},
                                    {"mpt-7b", 32, 4096, 16384, 32, R"({
  "architectures": ["MPTForCausalLM"], "attn_config": {"alibi": true, "alibi_bias_max": 8,
    "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
    "attn_uses_sequence_id": false, "clip_qkv": null, "prefix_lm": false, "qk_ln": false,
    "softmax_scale": null},
  "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig",
    "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"},
  "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4,
  "init_config": {"emb_init_std": null, "emb_init_uniform_lim": null, "fan_mode": "fan_in",
    "init_div_is_residual": true, "init_gain": 0, "init_nonlinearity": "relu", "init_std": 0.02,
    "name": "kaiming_normal_", "verbose": 0},
  "init_device": "cpu", "learned_pos_emb": true, "logit_scale": null, "max_seq_len": 2048,
  "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": true,
  "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
  "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16",
  "transformers_version": "4.28.1", "use_cache": false, "verbose": 0, "vocab_size": 50432})"}};

const PublicConfig kLlamaConfigs[] = {{"llama-7b", 32, 4096, 11008, 32, R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 11008, "max_position_embeddings": 2048, "max_sequence_length": 2048,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "torch_dtype": "float16",
  "transformers_version": "4.28.1", "use_cache": true, "vocab_size": 32000})"},
                                      {"Llama-2-70b", 80, 8192, 28672, 8, R"({
  "_name_or_path": "meta-llama/Llama-2-70b-hf", "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 8192,
  "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 4096,
  "model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 80,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.32.0.dev0",
  "use_cache": true, "vocab_size": 32000})"},
                                      {"Meta-Llama-3-8B", 32, 4096, 14336, 8, R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256})"},
                                      {"Llama-3.1-8B-Instruct", 32, 4096, 14336, 8, R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})"},
                                      {"Llama-3.2-1B", 16, 2048, 8192, 8, R"({
  "_name_or_path": "meta-llama/Llama-3.2-1B", "architectures": ["LlamaForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pad_token_id": 128004, "pretraining_tp": 1,
  "quantization_config": null, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.46.3", "unsloth_fixed": true, "use_cache": true,
  "vocab_size": 128256})"},
                                      {"SmolLM2-135M", 30, 576, 1536, 3, R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
  "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9,
  "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}},
  "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152})"},
                                      {"deepseek-coder-1.3b", 24, 2048, 5504, 16, R"({
  "_name_or_path": "/3fs-jd/prod/deepseek/shared/zhuqihao/public_model/deepseek-coder-1b",
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 32013, "eos_token_id": 32014,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 5504, "max_position_embeddings": 16384, "model_type": "llama",
  "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
  "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 4.0, "type": "linear"},
  "rope_theta": 100000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.33.1", "use_cache": true, "vocab_size": 32256})"}};

const PublicConfig kMistralConfigs[] = {{"Mistral-7B-v0.1", 32, 4096, 14336, 8, R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})"},
                                        {"Mistral-Nemo-Base-2407", 40, 5120, 14336, 8, R"({
  "architectures": ["MistralForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true,
  "vocab_size": 131072})"}};

const PublicConfig kQwenConfigs[] = {{"Qwen1.5-0.5B", 24, 1024, 2816, 16, R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 2816, "max_position_embeddings": 32768, "max_window_layers": 21,
  "model_type": "qwen2", "num_attention_heads": 16, "num_hidden_layers": 24,
  "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.37.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})"},
                                     {"Qwen2.5-0.5B", 24, 896, 4864, 2, R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})"},
                                     {"Qwen3-8B", 36, 4096, 12288, 8, R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"}};

const PublicConfig kGemmaConfigs[] = {{"gemma-2-9b-it", 42, 3584, 14336, 8, R"({
  "_attn_implementation": "eager", "architectures": ["Gemma2ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
  "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "gemma2",
  "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
  "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
  "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
  "vocab_size": 256000})"}};

}  // namespace

TEST_CASE("published config.json texts are read") {
  const std::span<const PublicConfig> families[] = {kGptConfigs, kLlamaConfigs, kMistralConfigs,
                                                    kQwenConfigs, kGemmaConfigs};
  for (const auto& family : families) {
    for (const PublicConfig& config : family) {
      CAPTURE(config.name);
      DecoderSpec spec;
      CHECK_NOTHROW(spec = spec_from_hf_config(config.json, config.name));
      CHECK(spec.num_hidden_layers == config.layers);
      CHECK(spec.hidden_size == config.hidden);
      CHECK(spec.intermediate_size == config.intermediate);
      CHECK(spec.num_key_value_heads == config.kv_heads);
    }
  }
}

TEST_CASE("a key of a published file is refused at a value that asks for more") {
  const struct {
    const char* family;
    const char* off;
    const char* on;
  } cases[] = {{"qwen2", R"("use_mrope": false)", R"("use_mrope": true)"},
               {"llama", R"("rope_interleaved": false)", R"("rope_interleaved": true)"},
               {"llama", R"("use_sliding_window": false)", R"("use_sliding_window": true)"},
               {"llama", R"("partial_rotary_factor": 1)", R"("partial_rotary_factor": 0.5)"},
               {"mistral", R"("attention_bias": false)", R"("attention_bias": true)"},
               {"qwen3", R"("mlp_bias": false)", R"("mlp_bias": true)"},
               {"qwen3", R"("pretraining_tp": 1)", R"("pretraining_tp": 2)"}};
  for (const auto& [family, off, on] : cases) {
    CAPTURE(on);
    const auto read = [family = family](const char* key) {
      spec_from_hf_config(fmt::format(R"({{"model_type": "{}", {}}})", family, key), "test");
    };
    CHECK_NOTHROW(read(off));
    CHECK_THROWS_WITH_AS(read(on), doctest::Contains("only"), DataError);
  }
}

TEST_CASE("a config.json that is no JSON is refused with the place and what to do") {
  const auto refused = [](const std::string& json, const std::string& place) {
    CAPTURE(json);
    for (const std::string& part :
         {std::string("dir/config.json: not valid JSON: "), place,
          std::string("; correct it, or take the file again from the model's publisher")}) {
      CHECK_THROWS_WITH_AS(spec_from_hf_config(json, "dir/config.json"),
                           doctest::Contains(part.c_str()), DataError);
    }
  };
  refused("", "line 1, column 1");
  refused("{\"model_type\": \"llama\",\n \"vocab_size\"", "line 2, column 14");  // cut off
  refused("{\"model_type\": \"llama\",\n \"rope_theta\": NaN}", "line 2, column 16");
  refused("{\"model_type\": \"llama\", \"rope_theta\": 1e400}", "'1e400'");
}

}  // namespace llmtrain::models
