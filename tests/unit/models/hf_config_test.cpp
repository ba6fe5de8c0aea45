#include "lib/models/hf_config.hpp"

#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/models/hf_config_fixture.hpp"

namespace llmtrain::models {

namespace {

std::string refusal(const std::string& json) {
  try {
    spec_from_hf_config(json, "dir/config.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a config.json with only its model_type is transformers' default model") {
  const DecoderSpec gpt2 = spec_from_hf_config(R"({"model_type": "gpt2"})", "test");
  CHECK(gpt2.vocab_size == 50257);
  CHECK(gpt2.hidden_size == 768);
  CHECK(gpt2.intermediate_size == 3072);
  CHECK(gpt2.head_dim == 64);
  CHECK(gpt2.tie_word_embeddings);
  CHECK(gpt2.attention_dropout == 0.1);
  const DecoderSpec llama = spec_from_hf_config(R"({"model_type": "llama"})", "test");
  CHECK(llama.num_key_value_heads == 32);
  CHECK(llama.norm.eps == 1e-6);
  CHECK_FALSE(llama.tie_word_embeddings);
  const DecoderSpec mistral = spec_from_hf_config(R"({"model_type": "mistral"})", "test");
  CHECK(mistral.num_key_value_heads == 8);
  CHECK(mistral.intermediate_size == 14336);
  CHECK(mistral.window_of(0) == 4096);
  const DecoderSpec qwen2 = spec_from_hf_config(R"({"model_type": "qwen2"})", "test");
  CHECK(qwen2.vocab_size == 151936);
  CHECK(qwen2.qkv_bias);
  CHECK_FALSE(qwen2.attention_output_bias);
  CHECK(qwen2.window_of(31) == 0);
  const DecoderSpec qwen3 = spec_from_hf_config(R"({"model_type": "qwen3"})", "test");
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.qk_norm);
  CHECK_FALSE(qwen3.qkv_bias);
  const DecoderSpec gemma2 = spec_from_hf_config(R"({"model_type": "gemma2"})", "test");
  CHECK(gemma2.hidden_size == 2304);
  CHECK(gemma2.num_hidden_layers == 26);
  CHECK(gemma2.head_dim == 256);
  CHECK(gemma2.embedding_scale == 48);
  CHECK(gemma2.attention_scale == 1.0 / 16);
  CHECK(gemma2.attention_softcap == 50);
  CHECK(gemma2.logit_softcap == 30);
  CHECK(gemma2.norm.weight_offset == 1);
  CHECK(gemma2.activation == kernels::Activation::gelu_pytorch_tanh);
  CHECK(gemma2.tie_word_embeddings);
  CHECK(gemma2.window_of(0) == 4096);
  CHECK(gemma2.window_of(25) == 0);
  const DecoderSpec mpt = spec_from_hf_config(R"({"model_type": "mpt"})", "test");
  CHECK(mpt.vocab_size == 50368);
  CHECK(mpt.intermediate_size == 4 * 2048);
  CHECK(mpt.alibi_bias_max == 8);
  CHECK_FALSE(mpt.norm_bias);
  CHECK_FALSE(mpt.has_rope());
  CHECK(mpt.tie_word_embeddings);
  const DecoderSpec mixtral = spec_from_hf_config(R"({"model_type": "mixtral"})", "test");
  CHECK(mixtral.experts.num_experts == 8);
  CHECK(mixtral.experts.intermediate_size == 14336);
  CHECK(mixtral.experts.rule.top_k == 2);
  CHECK(mixtral.experts.rule.normalize);
  CHECK(mixtral.experts.aux_loss_coef == 0.001);
  CHECK(mixtral.num_expert_layers() == 32);
  CHECK(mixtral.norm.eps == 1e-5);
  CHECK(mixtral.rope_theta == 1e6);
  CHECK(mixtral.window_of(0) == 0);
  const DecoderSpec moe = spec_from_hf_config(R"({"model_type": "qwen3_moe"})", "test");
  CHECK(moe.experts.num_experts == 128);
  CHECK(moe.experts.intermediate_size == 768);
  CHECK(moe.experts.rule.top_k == 8);
  CHECK_FALSE(moe.experts.rule.normalize);
  CHECK(moe.num_expert_layers() == 24);
  CHECK(moe.head_dim == 64);
  CHECK(moe.qk_norm);
}

TEST_CASE("blocks with experts are transformers'; keys of experts are read strictly") {
  const auto with = [](const std::string& keys) {
    return spec_from_hf_config(
        R"({"model_type": "qwen3_moe", "num_hidden_layers": 6, "num_local_experts": 4, )"
        R"("num_experts_per_tok": 2, )" +
            keys + "}",
        "test");
  };
  const DecoderSpec spec = with(R"("decoder_sparse_step": 2, "mlp_only_layers": [3])");
  CHECK(spec.has_experts(1));
  CHECK_FALSE(spec.has_experts(2));
  CHECK_FALSE(spec.has_experts(3));
  CHECK(spec.num_expert_layers() == 2);
  CHECK(spec.experts.num_experts == 4);
  for (const char* refused :
       {R"("decoder_sparse_step": 7)", R"("mlp_only_layers": [0, "1"])", R"("mlp_only_layers": 3)",
        R"("router_aux_loss_coef": -1)", R"("use_sliding_window": true)", R"("num_experts": 5)",
        R"("shared_expert_intermediate_size": 4)"}) {
    CAPTURE(refused);
    CHECK_THROWS_AS(with(refused), DataError);
  }
}

TEST_CASE("what MPT's own object says is read as strictly as the rest") {
  const auto mpt = [](const std::string& attention) {
    return spec_from_hf_config(R"({"model_type": "mpt", "attn_config": )" + attention + "}",
                               "test");
  };
  CHECK(mpt(R"({"attn_pdrop": 0.1, "softmax_scale": 0.5})").attention_scale == 0.5);
  CHECK(mpt(R"({"attn_pdrop": 0.1})").attention_dropout == 0.1);
  CHECK(mpt("{}").attention_scale == 0);
  for (const char* refused :
       {R"({"alibi": false})", R"({"clip_qkv": 6})", R"({"qk_ln": true})", R"({"unheard": 1})",
        R"({"alibi_bias_max": 4})", R"({"attn_type": "multiquery_attention"})", "[]"}) {
    CAPTURE(refused);
    CHECK_THROWS_WITH_AS(mpt(refused), doctest::Contains("attn_config"), DataError);
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  CHECK_THROWS_AS(mpt(R"({"unheard": )" + deep + "}"), DataError);
}

TEST_CASE("windows are those of transformers' layers") {
  const auto windows = [](const std::string& keys) {
    const DecoderSpec spec =
        spec_from_hf_config(R"({"num_hidden_layers": 3, "model_type": )" + keys + "}", "test");
    return std::vector{spec.window_of(0), spec.window_of(1), spec.window_of(2)};
  };
  using Windows = std::vector<std::int64_t>;
  CHECK(windows(R"("mistral", "sliding_window": 5)") == Windows{5, 5, 5});
  CHECK(windows(R"("mistral", "sliding_window": null)") == Windows{0, 0, 0});
  const std::string upper = R"("qwen2", "sliding_window": 5, "max_window_layers": 1)";
  CHECK(windows(upper) == Windows{0, 0, 0});
  CHECK(windows(upper + R"(, "use_sliding_window": true)") == Windows{0, 5, 5});
  CHECK(windows(upper + R"(, "use_sliding_window": true, "layer_types": ["full_attention",
        "sliding_attention", "sliding_attention"])") == Windows{0, 5, 5});
  CHECK(windows(R"("qwen2", "use_sliding_window": true, "max_window_layers": 0)") ==
        Windows{4096, 4096, 4096});
}

TEST_CASE("the base of RoPE is found in every spelling") {
  const auto theta = [](const std::string& keys) {
    return spec_from_hf_config(R"({"model_type": "llama", )" + keys + "}", "test").rope_theta;
  };
  CHECK(theta(R"("rope_theta": 500000)") == 500000);
  CHECK(theta(R"("rope_theta": 7.5, "rope_scaling": null)") == 7.5);
  CHECK(theta(R"("rope_parameters": {"rope_type": "default", "rope_theta": 9.0})") == 9);
  CHECK(theta(R"("rope_scaling": {"type": "default"})") == 10000);
}

TEST_CASE("scaled RoPE is read from both spellings") {
  const auto scaling = [](const std::string& object) {
    RopeScaling found;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const DecoderSpec spec = spec_from_hf_config(
          fmt::format(R"({{"model_type": "llama", "max_position_embeddings": 99, "{}": {}}})", key,
                      object),
          "test");
      CHECK((key == std::string("rope_scaling") || spec.rope_scaling == found));
      found = spec.rope_scaling;
    }
    return found;
  };
  CHECK(scaling(R"({"type": "linear", "factor": 2.5})") ==
        RopeScaling{.type = "linear", .factor = 2.5});
  CHECK(scaling(R"({"rope_type": "dynamic", "factor": 2})") ==
        RopeScaling{.type = "dynamic", .factor = 2});
  CHECK(scaling(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0,
        "high_freq_factor": 5.0, "original_max_position_embeddings": 44})") ==
        RopeScaling{.type = "llama3",
                    .factor = 8,
                    .original_max_position_embeddings = 44,
                    .low_freq_factor = 2,
                    .high_freq_factor = 5});
  CHECK(scaling(R"({"rope_type": "yarn", "factor": 4.0, "truncate": false, "beta_fast": 16})") ==
        RopeScaling{.type = "yarn",
                    .factor = 4,
                    .original_max_position_embeddings = 99,
                    .beta_fast = 16,
                    .truncate = false});
  // DeepSeek's two factors of the magnitude's logarithm.
  const RopeScaling deepseek =
      scaling(R"({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5})");
  const double log_factor = 0.1 * std::log(40.0);
  CHECK(*deepseek.attention_factor ==
        doctest::Approx((log_factor + 1) / (0.5 * log_factor + 1)).epsilon(1e-14));
}

TEST_CASE("what would be computed otherwise is refused by key") {
  const struct {
    const char* key;
    const char* value;
    const char* family;
  } cases[] = {
      {"rope_scaling", R"({"rope_type": "longrope", "factor": 8.0})", "llama"},
      {"rope_scaling", R"({"type": "linear", "factor": 0.5})", "llama"},
      {"rope_scaling", R"({"type": "linear"})", "llama"},
      {"rope_scaling", R"({"type": "yarn", "factor": null})", "llama"},
      {"rope_scaling", R"({"type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4})",
       "llama"},
      {"rope_scaling", R"({"type": "linear", "factor": 2.0, "beta_fast": 1})", "llama"},
      {"rope_scaling", R"({"type": "linear", "factor": "2"})", "llama"},
      {"rope_scaling", R"({"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2})", "llama"},
      {"rope_scaling", R"({"type": "llama3", "factor": 2, "high_freq_factor": 1})", "llama"},
      {"rope_parameters", R"({"rope_type": 3})", "llama"},
      {"rope_parameters", R"({"rope_type": "default", "partial_rotary_factor": 0.5})", "llama"},
      {"rope_theta", "-1", "llama"},
      {"pretraining_tp", "2", "llama"},
      {"sliding_window", "4096", "llama"},
      {"quantization_config", R"({"bits": 4})", "llama"},
      {"head_dim", "7", "llama"},
      {"hidden_act", R"("swish2")", "llama"},
      {"num_key_value_heads", "5", "llama"},
      {"num_attention_heads", "31", "llama"},
      {"rms_norm_eps", "0", "llama"},
      {"attention_dropout", "1.0", "llama"},
      {"attention_bias", "1", "llama"},
      {"vocab_size", "2.5", "llama"},
      {"vocab_size", "-3", "llama"},
      {"vocab_size", "99999999999999999999", "llama"},
      {"num_hidden_layers", "0", "llama"},
      {"sliding_window", "0", "mistral"},
      {"attention_bias", "true", "mistral"},
      {"layer_types", R"(["sliding_attention"])", "qwen2"},
      {"layer_types", R"(["full_attention", 1])", "qwen2"},
      {"max_window_layers", "-1", "qwen2"},
      {"attention_bias", "false", "qwen2"},
      {"add_cross_attention", "true", "gpt2"},
      {"pruned_heads", R"({"0": [1]})", "gpt2"},
      {"scale_attn_by_inverse_layer_idx", "true", "gpt2"},
      {"scale_attn_weights", "false", "gpt2"},
      {"n_head", "7", "gpt2"},
      {"activation_function", "3", "gpt2"},
      {"hidden_size", "16", "gpt2"},
  };
  for (const auto& [key, value, family] : cases) {
    CAPTURE(key);
    CAPTURE(value);
    const std::string message =
        refusal(fmt::format(R"({{"model_type": "{}", "{}": {}}})", family, key, value));
    CHECK(contains(message, fmt::format("dir/config.json: '{}' is ", key)));
    CHECK(contains(message, "; "));  // behind it stands what to do
  }
  const std::string bert = refusal(R"({"model_type": "bert"})");
  CHECK(contains(bert, "'model_type' is \"bert\": expected one of"));
  CHECK(contains(bert, "; choose a model of one of these families"));
  CHECK(contains(refusal("{}"), "'model_type' is absent"));
  CHECK(contains(refusal("[1]"), "expected one JSON object; correct it, or take the file again"));
  CHECK(contains(refusal(R"({"model_type": "llama", "hidden_size": -3})"),
                 "'hidden_size' is -3: expected an integer from 1 to "));
  CHECK(contains(refusal(R"({"model_type": "qwen2", "max_window_layers": -3})"),
                 "expected an integer from 0 to "));
  // Half a million levels deep.
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  CHECK(contains(refusal(R"({"model_type": "llama", "new": )" + deep + "}"), "nested deeper than"));
  CHECK(contains(refusal(R"({"model_type": "llama", "rms_norm_eps": 0.5, "rms_norm_eps": 1e-6})"),
                 "an object has the key 'rms_norm_eps' twice; correct it"));
}

TEST_CASE("a config.json that says two bases or scalings of RoPE is refused") {
  const auto with = [](const std::string& keys) {
    return refusal(R"({"model_type": "llama", "max_position_embeddings": 64, )" + keys + "}");
  };
  CHECK(contains(with(R"("rope_theta": 10000, "rope_parameters": {"rope_theta": 5e5})"),
                 "'rope_parameters' is an object: it says rope_theta 500000, another key 10000; "
                 "remove the wrong one"));
  CHECK(contains(with(R"("rope_scaling": {"type": "default", "rope_theta": 10000},
                         "rope_parameters": {"rope_theta": 5e5})"),
                 "it says rope_theta 500000"));
  const std::string linear = R"("rope_scaling": {"type": "linear", "factor": 2}, )";
  CHECK(contains(with(linear + R"("rope_parameters": {"rope_type": "linear", "factor": 4})"),
                 "it says linear, factor 4, rope_scaling linear, factor 2; remove the wrong one"));
  CHECK(contains(with(linear + R"("rope_parameters": {"rope_type": "default"})"), "says default"));
  CHECK(with(linear + R"("rope_theta": 5e5, "rope_parameters": {"rope_type": "linear",
             "factor": 2, "rope_theta": 5e5})") == "accepted");
  CHECK(contains(with(R"("rope_scaling": {"type": "linear"})"), "factor is missing"));
}

TEST_CASE("a layout has every parameter of the model once") {
  const Mesh mesh({}, 0, self_factory());
  for (const bool tied : {false, true}) {
    DecoderSpec gpt2 = spec_from_hf_config(R"({"model_type": "gpt2", "n_layer": 3})", "test");
    DecoderSpec llama = llama_spec_for_test();
    gpt2.tie_word_embeddings = llama.tie_word_embeddings = tied;
    llama.mlp_bias = tied;
    for (const DecoderSpec& spec : {gpt2, llama}) {
      ParameterStore store(mesh);
      const Decoder decoder(store, spec);
      const HfLayout layout = (spec.learned_positions ? kGpt2 : kLlama).hf_layout(spec);
      std::multiset<std::string> ours;
      std::multiset<std::string> listed;
      for (const auto& p : store.all()) ours.insert(p->name());
      for (const HfTensor& tensor : layout.tensors) {
        listed.insert(tensor.members.begin(), tensor.members.end());
      }
      CHECK(listed == ours);
      CHECK(layout.copies.size() == (tied ? 1 : 0));
    }
  }
}

}  // namespace llmtrain::models
