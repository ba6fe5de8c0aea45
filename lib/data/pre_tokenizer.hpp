#pragma once
/// Pre-tokenization: cutting text into the pieces that BPE merges never cross.
///
/// The regular expressions are those of Hugging Face's tokenizer.json, whose engine is Oniguruma;
/// they run here on PCRE2 with JIT. Only syntax that both engines read alike is accepted; `\s` and
/// `\S` are rewritten because the engines' sets differ (PCRE2 counts U+180E as space).

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::data {

/// The pattern inside Hugging Face's ByteLevel pre-tokenizer.
extern const std::string_view kGpt2Pattern;
/// The pattern of cl100k and Llama 3: digits in groups of three, line ends with what precedes them.
extern const std::string_view kLlama3Pattern;

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

/// An Oniguruma pattern in PCRE2's words; DataError naming the construct for syntax outside the
/// subset that both engines read alike. Characters that Unicode added to a category after PCRE2's
/// tables were made are in its classes only `with_added_characters`, which halves the speed.
std::string to_pcre2_pattern(std::string_view pattern, bool with_added_characters);

/// A PCRE2 pattern that finds such a character.
std::string added_characters_pattern();

/// Immutable; one object serves all threads, each with a Worker of its own.
class PreTokenizer {
 public:
  /// Applies `patterns` one after the other, each to every piece that the ones before it cut
  /// (Split with behavior Isolated). No pattern: the text stays whole. DataError for a pattern that
  /// cannot be honoured.
  explicit PreTokenizer(std::vector<std::string> patterns);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  const std::vector<std::string>& patterns() const { return patterns_; }

  using Emit = std::function<void(std::string_view piece)>;

  /// Match memory of one thread.
  class Worker {
   public:
    explicit Worker(const PreTokenizer& owner);
    ~Worker();
    Worker(Worker&&) noexcept;
    Worker& operator=(Worker&&) noexcept;

    /// Calls `emit` for the pieces of `text` in order; joined they are `text`. A run of bytes that
    /// is not valid UTF-8 is a piece of its own. DataError if a pattern exceeds the match limit.
    void split(std::string_view text, const Emit& emit);

   private:
    bool has_added_characters(std::string_view text);
    void split_valid(std::size_t stage, std::string_view text, const Emit& emit);
    struct State;
    const PreTokenizer* owner_;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::vector<std::string> patterns_;
  std::vector<Code> codes_;         // one per pattern, for texts without added characters
  std::vector<Code> slower_codes_;  // one per pattern, for all texts
  std::vector<Code> finder_;        // one: finds an added character
};

}  // namespace llmtrain::data
