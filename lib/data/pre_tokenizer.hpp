#pragma once
/// Pre-tokenization: cutting text into the pieces that BPE merges never cross.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/regex.hpp"

namespace llmtrain::data {

/// The pattern inside Hugging Face's ByteLevel pre-tokenizer.
extern const std::string_view kGpt2Pattern;
/// The pattern of cl100k and Llama 3: digits in groups of three, line ends with what precedes them.
extern const std::string_view kLlama3Pattern;
/// The pattern of o200k (GPT-4o, gpt-oss): words by upper and lower case, contractions stay on.
extern const std::string_view kO200kPattern;

/// Keeps the words of program text whole: letters, digits and underscores belong together.
extern const std::string_view kIdentifiersPattern;
/// Only line ends cut, and line lengths beyond 128 characters: merges cross words (SuperBPE,
/// arXiv 2503.13423), so that a frequent phrase or line of a licence becomes one token.
extern const std::string_view kLinesPattern;

/// Patterns by name, for recipes.
struct NamedPattern {
  std::string_view name;
  std::string_view pattern;
};
const std::vector<NamedPattern>& named_patterns();
std::vector<std::string> pattern_names();

/// U+2581, SentencePiece's spelling of a space.
inline constexpr std::string_view kLowerOneEighthBlock = "\xE2\x96\x81";

/// The Metaspace pre-tokenizer: every space becomes `replacement`, one is put in front, and the
/// text is cut before each.
struct Metaspace {
  enum class Prepend { always, first, never };
  std::string replacement{kLowerOneEighthBlock};  ///< one character
  Prepend prepend = Prepend::always;              ///< `first`: only where the whole text begins
  bool split = true;
};

struct PreTokenizerOptions {
  /// Applied one after the other, each to every piece that the ones before it cut (Split with
  /// behavior Isolated), in Oniguruma's syntax. No pattern: the text stays whole.
  std::vector<std::string> patterns;
  /// After so many patterns each piece that does not begin with a space gets one
  /// (`add_prefix_space` of ByteLevel).
  std::optional<std::size_t> prefix_space_after;
  /// Applied last.
  std::optional<Metaspace> metaspace;
};

/// Immutable; one object serves all threads, each with a Worker of its own.
class PreTokenizer {
 public:
  /// DataError for a pattern that cannot be honoured.
  explicit PreTokenizer(PreTokenizerOptions options);
  explicit PreTokenizer(std::vector<std::string> patterns);

  const PreTokenizerOptions& options() const { return options_; }

  using Emit = std::function<void(std::string_view piece)>;

  /// Match and scratch memory of one thread.
  class Worker {
   public:
    explicit Worker(const PreTokenizer& owner);

    /// Calls `emit` for the pieces of `text` in order; joined they are `text`, but for the spaces
    /// that the options add or replace. A run of bytes that is not valid UTF-8 is a piece of its
    /// own. `at_start`: `text` is where the whole text begins. A piece is valid until `emit`
    /// returns. DataError if a pattern exceeds the match limit.
    void split(std::string_view text, const Emit& emit, bool at_start = true);

   private:
    void split_valid(std::size_t stage, std::string_view text, const Emit& emit);
    void finish(std::string_view text, const Emit& emit);

    const PreTokenizer* owner_;
    std::vector<Regex::Matcher> matchers_;  // one per pattern
    bool has_added_ = false;
    const char* start_ = nullptr;         // where the whole text begins, if it is in work
    const char* behind_stray_ = nullptr;  // a run behind bytes that are not UTF-8: no space there
    std::string prefixed_;
    std::string replaced_;
  };

 private:
  PreTokenizerOptions options_;
  std::vector<Regex> patterns_;
};

}  // namespace llmtrain::data
