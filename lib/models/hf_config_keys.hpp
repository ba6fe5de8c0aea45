#pragma once
/// Keys of config.json that change no computation.

#include <string_view>

namespace llmtrain::models {

/// transformers' PreTrainedConfig (versions 4 and 5): tokens, generation, outputs, bookkeeping.
inline constexpr std::string_view kInertKeys[] = {"_attn_implementation",
                                                  "_attn_implementation_autoset",
                                                  "_commit_hash",
                                                  "_from_model_config",
                                                  "_name_or_path",
                                                  "_num_labels",
                                                  "architectures",
                                                  "bad_words_ids",
                                                  "begin_suppress_tokens",
                                                  "bos_token_id",
                                                  "chunk_size_feed_forward",
                                                  "decoder_start_token_id",
                                                  "diversity_penalty",
                                                  "do_sample",
                                                  "dtype",
                                                  "early_stopping",
                                                  "encoder_no_repeat_ngram_size",
                                                  "eos_token_id",
                                                  "exponential_decay_length_penalty",
                                                  "finetuning_task",
                                                  "forced_bos_token_id",
                                                  "forced_eos_token_id",
                                                  "gradient_checkpointing",
                                                  "id2label",
                                                  "is_decoder",
                                                  "label2id",
                                                  "length_penalty",
                                                  "max_length",
                                                  "min_length",
                                                  "no_repeat_ngram_size",
                                                  "num_beam_groups",
                                                  "num_beams",
                                                  "num_labels",
                                                  "num_return_sequences",
                                                  "output_attentions",
                                                  "output_hidden_states",
                                                  "output_past",
                                                  "output_scores",
                                                  "pad_token_id",
                                                  "prefix",
                                                  "problem_type",
                                                  "remove_invalid_values",
                                                  "repetition_penalty",
                                                  "return_dict",
                                                  "return_dict_in_generate",
                                                  "sep_token_id",
                                                  "suppress_tokens",
                                                  "task_specific_params",
                                                  "temperature",
                                                  "tf_legacy_loss",
                                                  "tie_encoder_decoder",
                                                  "tokenizer_class",
                                                  "top_k",
                                                  "top_p",
                                                  "torch_dtype",
                                                  "torchscript",
                                                  "transformers.js_config",
                                                  "transformers_version",
                                                  "typical_p",
                                                  "unsloth_fixed",
                                                  "unsloth_version",
                                                  "use_bfloat16",
                                                  "use_cache"};

/// Keys that published files have though the family's code does not read them, and the value at
/// which nothing is lost by that: another one asks for what the family has not.
struct OffValue {
  std::string_view key;
  std::string_view json;
};
inline constexpr OffValue kOffValues[] = {
    {"mlp_bias", "false"},     {"partial_rotary_factor", "1.0"}, {"pretraining_tp", "1"},
    {"qk_layernorm", "false"}, {"rope_interleaved", "false"},    {"use_mrope", "false"},
    {"use_qk_norm", "false"},  {"use_sliding_window", "false"}};

}  // namespace llmtrain::models
