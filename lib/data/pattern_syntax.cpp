// The subset of regular expressions that Oniguruma (Ruby syntax) and PCRE2 read alike.
#include <array>
#include <cctype>

#include "lib/base/require.hpp"
#include "lib/data/pre_tokenizer.hpp"

namespace llmtrain::data {

namespace {

// White_Space of Unicode, which is Oniguruma's \s, as members of a PCRE2 class.
constexpr std::string_view kSpaceMembers = R"(\t-\r\x{85}\p{Z})";

// Case-insensitive matching folds single characters into several in Oniguruma only, so the one
// group that tokenizers use, for which this cannot happen, is accepted as a whole.
constexpr std::string_view kCaselessContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  std::string translate() {
    while (!rest_.empty()) item();
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail<DataError>("pattern '{}', byte {}: {}", pattern_, pattern_.size() - rest_.size(),
                    fmt::format(format, std::forward<Args>(args)...));
  }

  void take(std::size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  void item() {
    switch (rest_.front()) {
      case '\\':
        return escape(false);
      case '[':
        return character_class();
      case '(':
        return group();
      case '{':
        return repeat();
      case '^':
      case '$':
      case '.':
        refuse("'{}' means different things to different engines", rest_.front());
      default:
        take(1);
    }
  }

  void group() {
    if (rest_.starts_with(kCaselessContractions)) return take(kCaselessContractions.size());
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (rest_.starts_with(open)) return take(open.size());
    }
    if (rest_.size() > 1 && rest_[1] == '?') refuse("group option '{}'", rest_.substr(0, 4));
    take(1);
  }

  // {n}, {n,} and {n,m}. Ruby's {,m} and its reading of {n}+ as a nested repeat are not PCRE2's.
  void repeat() {
    std::size_t i = 1;
    const auto digits = [&] {
      const std::size_t begin = i;
      while (i < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[i])) != 0) ++i;
      return i - begin;
    };
    const std::size_t low = digits();
    if (low == 0 || low > 4) refuse("repeat without a lower bound of at most four digits");
    if (i < rest_.size() && rest_[i] == ',') {
      ++i;
      if (digits() > 4) refuse("repeat above 9999");
    }
    if (i >= rest_.size() || rest_[i] != '}') refuse("repeat that is not {{n}}, {{n,}} or {{n,m}}");
    ++i;
    if (i < rest_.size() && (rest_[i] == '+' || rest_[i] == '?')) refuse("suffix after a repeat");
    take(i);
  }

  void escape(bool in_class) {
    if (rest_.size() < 2) refuse("pattern ends in a backslash");
    const char c = rest_[1];
    if (c == 'p' || c == 'P') return property();
    if (c == 's' || (c == 'S' && !in_class)) {
      rest_.remove_prefix(2);
      if (in_class) {
        out_ += kSpaceMembers;
      } else {
        out_ += (c == 's' ? "[" : "[^");
        out_ += kSpaceMembers;
        out_ += "]";
      }
      return;
    }
    const bool same_letter = c == 'r' || c == 'n' || c == 't' || c == 'd';
    if (!same_letter && std::ispunct(static_cast<unsigned char>(c)) == 0) {
      refuse("escape '\\{}'{}", c, in_class ? " in a class" : "");
    }
    take(2);
  }

  // \p{L}, \p{Lu} ...: general categories of assigned characters.
  void property() {
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || end == std::string_view::npos) {
      refuse("property that is not \\p{{...}}");
    }
    const std::string_view name = rest_.substr(3, end - 3);
    static constexpr std::array<std::string_view, 31> kCategories = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
        "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
        "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
    bool known = false;
    for (const std::string_view category : kCategories) known |= category == name;
    if (!known) refuse("property '{}' is not a general category", name);
    take(end + 1);
  }

  void character_class() {
    take(1);
    if (rest_.starts_with('^')) take(1);
    if (rest_.starts_with(']')) refuse("class that starts with ']'");
    while (!rest_.empty() && rest_.front() != ']') {
      if (rest_.front() == '[') refuse("class within a class");
      if (rest_.starts_with("&&")) refuse("intersection of classes");
      if (rest_.front() == '\\') {
        escape(true);
      } else {
        take(1);
      }
    }
    if (rest_.empty()) refuse("class without an end");
    take(1);
  }

  std::string_view rest_;
  std::string_view pattern_;
  std::string out_;
};

}  // namespace

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<NamedPattern>& named_patterns() {
  static const std::vector<NamedPattern> rows = {{"gpt2", kGpt2Pattern},
                                                 {"llama3", kLlama3Pattern}};
  return rows;
}

std::string to_pcre2_pattern(std::string_view pattern) {
  return PatternTranslator(pattern).translate();
}

}  // namespace llmtrain::data
