#include "lib/models/hf_config.hpp"

#include <set>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

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

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

DecoderSpec llama_spec_for_test() {
  return spec_from_hf_config(R"({"model_type": "llama", "hidden_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 20, "num_hidden_layers": 2,
    "vocab_size": 30, "attention_bias": true, "rope_theta": 12345.5, "rms_norm_eps": 1e-3})",
                             "test");
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

TEST_CASE("what would be computed otherwise is refused by key") {
  const struct {
    const char* key;
    const char* value;
    const char* family;
  } cases[] = {
      {"rope_scaling", R"({"rope_type": "llama3", "factor": 8.0})", "llama"},
      {"rope_scaling", R"({"type": "linear", "factor": 2.0})", "llama"},
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
  }
  CHECK(
      contains(refusal(R"({"model_type": "bert"})"), "'model_type' is \"bert\": expected one of"));
  CHECK(contains(refusal("{}"), "'model_type' is absent"));
  CHECK(contains(refusal("[1]"), "expected one JSON object"));
  CHECK(contains(refusal("{\"model_type\": "), "expected one JSON object"));
  // Half a million levels deep.
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  CHECK(contains(refusal(R"({"model_type": "llama", "new": )" + deep + "}"), "'new' is an array"));
}

TEST_CASE("a written config.json says the same model") {
  DecoderSpec gpt2 = spec_from_hf_config(R"({"model_type": "gpt2"})", "test");
  gpt2.num_attention_heads = gpt2.num_key_value_heads = 16;
  gpt2.head_dim = 48;
  gpt2.intermediate_size = 1000;
  gpt2.norm.eps = 1e-3;
  gpt2.activation = kernels::Activation::relu;
  gpt2.tie_word_embeddings = false;
  for (const DecoderSpec& spec : {gpt2, llama_spec_for_test()}) {
    const Architecture& row = spec.learned_positions ? kGpt2 : kLlama;
    const std::string json = row.hf_config(spec, {.dtype = DType::bf16, .eos_token_id = 5});
    CHECK(contains(json, R"("dtype": "bfloat16")"));
    CHECK(contains(json, R"("eos_token_id": 5)"));
    CHECK(contains(json, R"("bos_token_id": null)"));
    const DecoderSpec again = spec_from_hf_config(json, "written");
    CHECK(computed_difference(again, spec) == "");
    CHECK(again.vocab_size == spec.vocab_size);
    CHECK(again.intermediate_size == spec.intermediate_size);
    CHECK(again.qkv_bias == spec.qkv_bias);
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

TEST_CASE("differences that shapes do not show are named") {
  const DecoderSpec a = llama_spec_for_test();
  DecoderSpec b = a;
  CHECK(computed_difference(a, b) == "");
  b.rope_theta = 10000;
  b.num_attention_heads = 8;
  CHECK(computed_difference(a, b) == "num_attention_heads 4 and 8, rope_theta 12345.5 and 10000");
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
