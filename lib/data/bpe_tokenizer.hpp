#pragma once
/// Byte-level BPE: the one tokenizer class. `bytes` is the case without merges.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/data/added_tokens.hpp"
#include "lib/data/bpe_merger.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// Everything that defines a byte-level BPE; what tokenizer.json says, in our words.
struct BpeDefinition {
  std::vector<std::string> patterns;  ///< split patterns, applied in order (Oniguruma syntax)
  /// The model's vocabulary by id, spelled as in tokenizer.json (byte-level characters); empty
  /// where an id is unused or belongs to an added token alone. All 256 bytes are there.
  std::vector<std::string> vocab;
  std::vector<Merge> merges;             ///< by rank
  std::vector<AddedToken> added_tokens;  ///< in file order
  bool ignore_merges = false;            ///< a piece that is a token as a whole is not merged
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

  BpeDefinition definition_;
  std::vector<std::string> bytes_;  // by id: the bytes that a token stands for
  std::vector<bool> known_;         // by id
  std::unordered_map<std::string_view, std::int32_t> whole_pieces_;  // if ignore_merges
  std::optional<BpeMerger> merger_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::optional<AddedTokenSplitter> added_;
  std::uint64_t fingerprint_ = 0;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_workers_;  // guarded by mutex_
};

}  // namespace llmtrain::data
