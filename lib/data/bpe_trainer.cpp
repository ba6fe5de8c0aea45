#include "lib/data/bpe_trainer.hpp"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/data/byte_level.hpp"
#include "lib/data/parallel.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kCountingTasks = 64;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return hash64(text); }
};
using PieceCounts = std::unordered_map<std::string_view, std::int64_t, TextHash>;

/// How often each piece occurs in all documents; the keys point into the documents.
PieceCounts count_pieces(std::span<const std::string_view> documents,
                         const PreTokenizer& pre_tokenizer) {
  std::vector<PieceCounts> parts(std::min(kCountingTasks, documents.size()));
  parallel_for(parts.size(), [&](std::size_t part) {
    PreTokenizer::Worker worker(pre_tokenizer);
    for (std::size_t d = part; d < documents.size(); d += parts.size()) {
      stop_if_asked("training the tokenizer");
      worker.split(documents[d], [&](std::string_view piece) { ++parts[part][piece]; });
    }
  });
  PieceCounts counts;
  for (const PieceCounts& part : parts) {
    for (const auto& [piece, count] : part) counts[piece] += count;
  }
  return counts;
}

/// The pieces as rows of tokens that shrink as pairs are merged, and the counts of all pairs.
class PairTable {
 public:
  PairTable(const PieceCounts& pieces, std::span<const std::int32_t, 256> byte_ids) {
    for (const auto& [piece, count] : pieces) {
      Word word{{}, count};
      for (const char c : piece) word.tokens.push_back(byte_ids[static_cast<unsigned char>(c)]);
      if (word.tokens.size() > 1) words_.push_back(std::move(word));
    }
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const auto& tokens = words_[w].tokens;
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        add({tokens[i], tokens[i + 1]}, words_[w].count, w);
      }
    }
    for (const auto& [pair, info] : pairs_) push(pair, info.count);
  }

  using Pair = std::pair<std::int32_t, std::int32_t>;

  /// Takes out the pair with the largest count, ties to the smaller ids; false if none reaches
  /// min_count.
  bool pop_best(std::int64_t min_count, Pair& best) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count == top.count) {
        best = top.pair;
        return count >= min_count;
      }
      // Counts that grew were pushed again when they did; those that fell are pushed here.
      if (count > 0 && count < top.count) push(top.pair, count);
    }
    return false;
  }

  /// Replaces `pair` by `merged` everywhere, left to right in each word.
  void merge(Pair pair, std::int32_t merged) {
    stop_if_asked("training the tokenizer");
    const auto found = pairs_.find(pair);
    std::vector<std::uint32_t> where = std::move(found->second.words);
    pairs_.erase(found);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    grown_.clear();
    for (const std::uint32_t w : where) merge_in_word(w, pair, merged);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair& grown : grown_) {
      const std::int64_t count = pairs_[grown].count;
      if (count > 0) push(grown, count);
    }
  }

 private:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count;
  };
  struct PairInfo {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it occurs, or did; may repeat
  };
  struct PairHash {
    std::size_t operator()(const Pair& pair) const {
      const std::uint64_t key = (std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32) |
                                static_cast<std::uint32_t>(pair.second);
      return (key * 0x9E3779B97F4A7C15u) >> 16;
    }
  };
  struct Candidate {
    std::int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void push(Pair pair, std::int64_t count) { queue_.push({count, pair}); }

  void add(Pair pair, std::int64_t count, std::size_t word) {
    PairInfo& info = pairs_[pair];
    info.count += count;
    if (count > 0 && (info.words.empty() || info.words.back() != word)) {
      info.words.push_back(static_cast<std::uint32_t>(word));
    }
  }

  void merge_in_word(std::uint32_t w, Pair pair, std::int32_t merged) {
    Word& word = words_[w];
    auto& tokens = word.tokens;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool here =
          i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      if (!here) {
        tokens[kept++] = tokens[i];
        continue;
      }
      // Neighbours to the left are already merged, those to the right are not yet.
      if (kept > 0) change({tokens[kept - 1], pair.first}, {tokens[kept - 1], merged}, w);
      if (i + 2 < tokens.size()) {
        change({pair.second, tokens[i + 2]}, {merged, tokens[i + 2]}, w);
      }
      tokens[kept++] = merged;
      ++i;
    }
    tokens.resize(kept);
  }

  void change(Pair gone, Pair grown, std::uint32_t w) {
    const std::int64_t count = words_[w].count;
    const auto found = pairs_.find(gone);
    if (found != pairs_.end()) found->second.count -= count;  // absent: the pair being merged
    add(grown, count, w);
    grown_.push_back(grown);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, PairInfo, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;  // pairs whose count rose in the current merge
};

std::string_view pattern_named(std::string_view name) {
  for (const NamedPattern& row : named_patterns()) {
    if (row.name == name) return row.pattern;
  }
  fail<RecipeError>("split pattern '{}' is not one of: {}", name, fmt::join(pattern_names(), ", "));
}

constexpr std::int32_t kEos = 0;
constexpr std::int32_t kFirstByte = 1;
constexpr std::size_t kFirstMerge = 257;
constexpr std::int64_t kMaxVocab = 1 << 24;

/// The end token, then the bytes in the order of their byte-level characters.
BpeDefinition initial_definition(std::string_view pattern,
                                 std::array<std::int32_t, 256>& byte_ids) {
  std::array<int, 256> bytes{};
  for (int byte = 0; byte < 256; ++byte) bytes[static_cast<std::size_t>(byte)] = byte;
  const auto& code_points = byte_level_code_points();
  std::sort(bytes.begin(), bytes.end(), [&](int a, int b) {
    return code_points[static_cast<std::size_t>(a)] < code_points[static_cast<std::size_t>(b)];
  });
  BpeDefinition definition;
  definition.pre_tokenizer.patterns.emplace_back(pattern);
  definition.vocab.emplace_back(kEndOfText);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char c = static_cast<char>(bytes[i]);
    definition.vocab.push_back(to_byte_level(std::string_view(&c, 1)));
    byte_ids[static_cast<std::size_t>(bytes[i])] = kFirstByte + static_cast<std::int32_t>(i);
  }
  definition.added_tokens.push_back({.id = kEos, .content = std::string(kEndOfText)});
  definition.eos_id = kEos;
  return definition;
}

}  // namespace

std::shared_ptr<const BpeTokenizer> train_bpe(std::span<const std::string_view> documents,
                                              const BpeTrainingOptions& options) {
  require<RecipeError>(options.vocab_size >= static_cast<std::int64_t>(kFirstMerge) &&
                           options.vocab_size <= kMaxVocab,
                       "vocabulary of {} tokens: at least {} (the bytes and the end token) and at "
                       "most {} are possible",
                       options.vocab_size, kFirstMerge, kMaxVocab);
  require<RecipeError>(options.min_count >= 1, "min_count {} is below 1", options.min_count);
  const std::string_view pattern = pattern_named(options.pattern);
  std::array<std::int32_t, 256> byte_ids{};
  BpeDefinition definition = initial_definition(pattern, byte_ids);

  const PieceCounts pieces =
      count_pieces(documents, PreTokenizer(std::vector<std::string>{std::string(pattern)}));
  require<DataError>(!pieces.empty(), "no text to train a tokenizer on: all {} documents are empty",
                     documents.size());
  PairTable table(pieces, byte_ids);
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t id = 0; id < definition.vocab.size(); ++id) {
    ids.emplace(definition.vocab[id], static_cast<std::int32_t>(id));
  }
  PairTable::Pair pair;
  while (std::ssize(definition.vocab) < options.vocab_size &&
         table.pop_best(options.min_count, pair)) {
    std::string text = definition.vocab[static_cast<std::size_t>(pair.first)] +
                       definition.vocab[static_cast<std::size_t>(pair.second)];
    // Another pair may have made the same text before: then its id serves both.
    const auto [found, is_new] =
        ids.emplace(text, static_cast<std::int32_t>(definition.vocab.size()));
    if (is_new) definition.vocab.push_back(std::move(text));
    definition.merges.push_back({pair.first, pair.second, found->second});
    table.merge(pair, found->second);
    if (options.progress && definition.vocab.size() % 256 == 0) {
      options.progress(std::ssize(definition.vocab), options.vocab_size);
    }
  }
  return std::make_shared<const BpeTokenizer>(std::move(definition));
}

}  // namespace llmtrain::data
