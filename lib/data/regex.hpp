#pragma once
/// The regular expressions of tokenizer.json.
///
/// Hugging Face runs them on Oniguruma; here they run on PCRE2 with JIT. Only syntax that both
/// engines read alike is accepted; `\s` and `\S` are rewritten because the engines' sets differ
/// (PCRE2 counts U+180E as space).

#include <memory>
#include <string>
#include <string_view>

namespace llmtrain::data {

/// An Oniguruma pattern in PCRE2's words; DataError naming the construct for syntax outside the
/// subset that both engines read alike. Characters that Unicode added to a category after PCRE2's
/// tables were made are in its classes only `with_added_characters`, which halves the speed.
std::string to_pcre2_pattern(std::string_view pattern, bool with_added_characters);

/// A PCRE2 pattern that finds such a character.
std::string added_characters_pattern();

/// A PCRE2 pattern that finds a word character of Unicode 16.
std::string word_character_pattern();

/// Whether valid UTF-8 holds one.
bool has_added_characters(std::string_view text);

/// Whether a code point is a word character in Unicode 16 (`\w` of Rust's regular expressions).
bool is_word_character(std::uint32_t code_point);

/// A compiled pattern. Immutable and cheap to copy; one object serves all threads, each with a
/// Matcher of its own.
class Regex {
 public:
  /// DataError for a pattern that cannot be honoured or that matches the empty string.
  explicit Regex(std::string pattern);

  const std::string& pattern() const;

  /// Match memory of one thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    /// Finds the first match at or after byte `from` of valid UTF-8: [begin, end) if true. Texts
    /// that have no added characters go the faster way. DataError beyond the match limit.
    bool find(std::string_view text, std::size_t from, bool has_added, std::size_t& begin,
              std::size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace llmtrain::data
