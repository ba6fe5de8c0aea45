#pragma once
/// Hugging Face's tokenizer.json (format version 1.0, library `tokenizers`).

#include <filesystem>
#include <memory>
#include <string_view>

#include "lib/data/bpe_tokenizer.hpp"

namespace llmtrain::data {

/// Reads a BPE whose ids will be those of Hugging Face. Honoured:
/// - model BPE with merges in both notations, `ignore_merges`, `byte_fallback`, `unk_token` and
///   `fuse_unk`;
/// - any sequence of the normalizers of normalizer_types();
/// - pre-tokenizer ByteLevel or Metaspace, none, or a Sequence of Split (Regex, Isolated) that may
///   end in one of them;
/// - added tokens with all their options;
/// - any sequence of the post-processors of post_processor_types();
/// - any sequence of the decoders of decoder_types().
/// Everything else that would change ids or text (dropout, truncation, prefixes of subwords,
/// characters that would vanish ...) is a DataError naming the field. `name` is for messages.
BpeDefinition parse_tokenizer_json(std::string_view text, std::string_view name);

/// Loads `path` (a tokenizer.json, or a directory that holds one). Start and end tokens are
/// `bos_token` and `eos_token` of a tokenizer_config.json beside it; without one, the end token is
/// the added token "<|endoftext|>", "<|end_of_text|>" or "</s>" if there is one.
std::shared_ptr<const BpeTokenizer> load_tokenizer_json(const std::filesystem::path& path);

}  // namespace llmtrain::data
