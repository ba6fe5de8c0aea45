#pragma once
/// Hugging Face's tokenizer.json (format version 1.0, library `tokenizers`).

#include <filesystem>
#include <memory>
#include <string_view>

#include "lib/data/bpe_tokenizer.hpp"

namespace llmtrain::data {

/// Reads a byte-level BPE. Honoured: model BPE with merges in both notations and `ignore_merges`;
/// pre-tokenizer ByteLevel, or a Sequence of Split (Regex, Isolated) ending in ByteLevel; added
/// tokens; decoder ByteLevel. The post-processor only adds special tokens, which `encode` never
/// does, and is not read. Everything else that would change ids (normalizer, prefix space, dropout,
/// truncation, stripping added tokens ...) is a DataError naming the field. `name` is for messages.
BpeDefinition parse_tokenizer_json(std::string_view text, std::string_view name);

/// Loads `path` (a tokenizer.json, or a directory that holds one). Start and end tokens are
/// `bos_token` and `eos_token` of a tokenizer_config.json beside it; without one, the end token is
/// the added token "<|endoftext|>", "<|end_of_text|>" or "</s>" if there is one.
std::shared_ptr<const BpeTokenizer> load_tokenizer_json(const std::filesystem::path& path);

}  // namespace llmtrain::data
