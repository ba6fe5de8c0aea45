#pragma once
/// BPE: the one tokenizer class, composed of normalizer, added tokens, pre-tokenizer, merges and
/// decoder. `bytes` is the case without merges.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/data/added_tokens.hpp"
#include "lib/data/bpe_merger.hpp"
#include "lib/data/bpe_symbols.hpp"
#include "lib/data/decoder.hpp"
#include "lib/data/normalizer.hpp"
#include "lib/data/post_processor.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// Everything that defines a BPE tokenizer; what tokenizer.json says, in our words.
struct BpeDefinition {
  Normalizer normalizer;
  PreTokenizerOptions pre_tokenizer;
  /// Merges start from bytes, and `vocab` is spelled in byte-level characters with all 256 bytes
  /// there (the pre-tokenizer ends in ByteLevel). Otherwise they start from characters.
  bool byte_level = true;
  BpeSymbols::Unknown unknown;  ///< what becomes of other characters; unused for byte_level
  /// The model's vocabulary by id, spelled as in tokenizer.json; empty where an id is unused or
  /// belongs to an added token alone.
  std::vector<std::string> vocab;
  std::vector<Merge> merges;             ///< by rank
  std::vector<AddedToken> added_tokens;  ///< in file order
  bool ignore_merges = false;            ///< a piece that is a token as a whole is not merged
  PostProcessor post_processor;
  Decoder decoder;
  std::optional<std::int32_t> eos_id;
  std::optional<std::int32_t> bos_id;
};

class BpeTokenizer final : public Tokenizer {
 public:
  /// DataError for a definition that contradicts itself (a missing byte, a merge whose result is
  /// another text, an id out of range, a pattern that cannot be honoured).
  explicit BpeTokenizer(BpeDefinition definition);
  ~BpeTokenizer() override;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& out) const override;
  std::string_view token_bytes(std::int32_t id) const override;
  std::string_view token_spelling(std::int32_t id) const override {
    return spellings_[static_cast<std::size_t>(id)];
  }
  std::string decode(std::span<const std::int32_t> ids) const override;
  bool keeps_text() const override;
  const TokenFrame& frame() const override { return definition_.post_processor.frame(); }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::optional<std::int32_t> eos_id() const override { return definition_.eos_id; }
  std::optional<std::int32_t> bos_id() const override { return definition_.bos_id; }
  std::string to_json() const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }

  const BpeDefinition& definition() const { return definition_; }

 private:
  class Worker;  // pre-tokenizer, scratch memory and cache of one thread
  std::unique_ptr<Worker> take_worker() const;
  void index_tokens();
  void check_special_ids() const;
  std::string json_with(const PostProcessor& post_processor) const;
  void index_added_tokens();
  void check_merges() const;
  void make_symbols();

  BpeDefinition definition_;
  std::vector<std::string> spellings_;  // by id, as the decoder takes them; empty: no such token
  std::vector<std::string> bytes_;      // by id: what a token stands for in the middle of a text
  std::unordered_map<std::string, std::int32_t> whole_pieces_;  // if ignore_merges
  std::optional<BpeSymbols> symbols_;
  std::optional<BpeMerger> merger_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::optional<AddedTokenSplitter> added_;             // looked for in the text as it is
  std::optional<AddedTokenSplitter> added_normalized_;  // looked for in normalized text
  std::uint64_t fingerprint_ = 0;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_workers_;  // guarded by mutex_
};

}  // namespace llmtrain::data
