#pragma once
/// Training of byte-level BPE (Gage, 1994; Sennrich et al., 2016).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/data/bpe_tokenizer.hpp"

namespace llmtrain::data {

struct BpeTrainingOptions {
  std::int64_t vocab_size = 8192;  ///< with the end token and the 256 bytes; at least 257
  std::string pattern = "gpt2";    ///< a name of named_patterns()
  std::int64_t min_count = 2;      ///< a pair that occurs less often is not merged
  /// Called now and then with the tokens made so far and vocab_size.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
};

/// Learns merges from `documents`: again and again the pair of neighbouring tokens with the largest
/// count, of equal ones that with the smaller ids (left, then right), becomes a token. Ids as in
/// Hugging Face's trainer: 0 is "<|endoftext|>", then the 256 bytes in the order of their
/// byte-level characters, then the merges. The result does not depend on the number of threads, nor
/// on the order of the documents. It may be smaller than vocab_size if no pair is left: its
/// vocab_size() tells. DataError if the documents hold no text; RecipeError for options out of
/// range.
std::shared_ptr<const BpeTokenizer> train_bpe(std::span<const std::string_view> documents,
                                              const BpeTrainingOptions& options);

}  // namespace llmtrain::data
