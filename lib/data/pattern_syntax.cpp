// The subset of regular expressions that Oniguruma (Ruby syntax) and PCRE2 read alike.
#include <cctype>
#include <initializer_list>

#include "lib/base/require.hpp"
#include "lib/data/json_field.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/data/regex.hpp"

namespace llmtrain::data {

namespace {

// White_Space of Unicode, which is Oniguruma's \s, as members of a PCRE2 class.
constexpr std::string_view kSpaceMembers = R"(\t-\r\x{85}\p{Z})";

// Members that Unicode 15.0, 15.1 and 16.0 added to the general categories. Oniguruma as in Hugging
// Face's tokenizers 0.23 has Unicode 16, PCRE2 10.42 has Unicode 14; a newer PCRE2 just has them
// twice. Found by comparing the two engines on every code point.
constexpr std::string_view kAddedLu =
    R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})";
constexpr std::string_view kAddedLl =
    R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})";
constexpr std::string_view kAddedLm =
    R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})";
constexpr std::string_view kAddedLo =
    R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4})"
    R"(\x{1123F}-\x{11240}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7})"
    R"(\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33})"
    R"(\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D})"
    R"(\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED})"
    R"(\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kAddedM =
    R"(\x{897}\x{CF3}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241})"
    R"(\x{113B8}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2})"
    R"(\x{113E1}-\x{113E2}\x{11F00}-\x{11F01}\x{11F03}\x{11F34}-\x{11F3A})"
    R"(\x{11F3E}-\x{11F42}\x{11F5A}\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F})"
    R"(\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})";
constexpr std::string_view kAddedNd =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9})"
    R"(\x{1E5F1}-\x{1E5FA})";
constexpr std::string_view kAddedNo = R"(\x{1D2C0}-\x{1D2D3})";
constexpr std::string_view kAddedP =
    R"(\x{1B4E}-\x{1B4F}\x{1B7F}\x{10D6E}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8})"
    R"(\x{11B00}-\x{11B09}\x{11BE1}\x{11F43}-\x{11F4F}\x{16D6D}-\x{16D6F}\x{1E5FF})";
constexpr std::string_view kAddedS =
    R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{10D8E}-\x{10D8F})"
    R"(\x{1CC00}-\x{1CCEF}\x{1CD00}-\x{1CEB3}\x{1F6DC}\x{1F774}-\x{1F776})"
    R"(\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1})"
    R"(\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF})"
    R"(\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF})"
    R"(\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})";

/// Members of a PCRE2 class that are a general category of Unicode 16; empty for a name that is not
/// supported. (Of the marks only all together: Unicode moved one between their kinds.)
std::string category_members(std::string_view name, bool with_added) {
  const auto members = [&](std::initializer_list<std::string_view> added) {
    std::string text = fmt::format("\\p{{{}}}", name);
    if (!with_added) return text;
    for (const std::string_view range : added) text += range;
    return text;
  };
  if (name == "L") return members({kAddedLu, kAddedLl, kAddedLm, kAddedLo});
  if (name == "Lu") return members({kAddedLu});
  if (name == "Ll") return members({kAddedLl});
  if (name == "Lm") return members({kAddedLm});
  if (name == "Lo") return members({kAddedLo});
  if (name == "M") return members({kAddedM});
  if (name == "N") return members({kAddedNd, kAddedNo});
  if (name == "Nd") return members({kAddedNd});
  if (name == "No") return members({kAddedNo});
  if (name == "P") return members({kAddedP});
  if (name == "S") return members({kAddedS});
  if (name == "Lt" || name == "Nl" || name == "Z") return members({});
  return "";
}

// Case-insensitive matching folds single characters into several in Oniguruma only, so the one
// group that tokenizers use, for which this cannot happen, is accepted as a whole.
constexpr std::string_view kCaselessContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";

class PatternTranslator {
 public:
  PatternTranslator(std::string_view pattern, bool with_added)
      : rest_(pattern), pattern_(pattern), with_added_(with_added) {}

  std::string translate() {
    while (!rest_.empty()) item();
    return std::move(out_);
  }

 private:
  // What no engine reads.
  [[noreturn]] void incomplete(std::string_view problem) const {
    fail<DataError>("pattern '{}' {}; correct the pattern", pattern_, problem);
  }

  // What engines read differently.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail<DataError>("pattern '{}', byte {}: {}: engines differ in it, so that {}", pattern_,
                    pattern_.size() - rest_.size(),
                    fmt::format(format, std::forward<Args>(args)...), kUnlikeHuggingFace);
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
        refuse("'{}'", rest_.front());
      default:
        take(1);
    }
  }

  void group() {
    if (rest_.starts_with(kCaselessContractions)) return take(kCaselessContractions.size());
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (rest_.starts_with(open)) return take(open.size());
    }
    if (rest_.starts_with("(?")) refuse("group option '{}'", rest_.substr(0, 4));
    if (rest_.starts_with("(*")) refuse("'(*', the start of a verb");
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
    if (rest_.size() < 2) incomplete("ends in a backslash");
    const char c = rest_[1];
    switch (c) {
      case 'p':
      case 'P':
        return property(in_class);
      case 's':
      case 'S':
        return set(kSpaceMembers, c == 'S', 2, in_class);
      case 'd':
        return set(category_members("Nd", with_added_), false, 2, in_class);
      case 'r':
      case 'n':
      case 't':
        return take(2);
      default:
        if (std::ispunct(static_cast<unsigned char>(c)) == 0) refuse("escape '\\{}'", c);
        take(2);
    }
  }

  // Replaces `length` bytes of the pattern by a set, as a class or as members of the class around
  // it.
  void set(std::string_view members, bool negated, std::size_t length, bool in_class) {
    if (negated && in_class) refuse("'{}' in a class", rest_.substr(0, length));
    rest_.remove_prefix(length);
    if (in_class) {
      out_ += members;
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
    }
  }

  // \p{L}, \P{Lu} ...
  void property(bool in_class) {
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || end == std::string_view::npos) {
      refuse("property that is not \\p{{...}}");
    }
    const std::string_view name = rest_.substr(3, end - 3);
    const std::string members = category_members(name, with_added_);
    if (members.empty()) refuse("property '{}' is not a supported general category", name);
    set(members, rest_[1] == 'P', end + 1, in_class);
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
    if (rest_.empty()) incomplete("has a class without an end");
    take(1);
  }

  std::string_view rest_;
  std::string_view pattern_;
  bool with_added_;
  std::string out_;
};

}  // namespace

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::string_view kIdentifiersPattern =
    R"( ?[\p{L}\p{N}_]+| ?[^\s\p{L}\p{N}_]+|\s+(?!\S)|\s+)";

const std::string_view kLinesPattern = R"(\s*[^\n]{1,128}(?!\S)|\s*[^\n]{1,128}|\s+)";

const std::vector<NamedPattern>& named_patterns() {
  static const std::vector<NamedPattern> rows = {{"gpt2", kGpt2Pattern},
                                                 {"llama3", kLlama3Pattern},
                                                 {"o200k", kO200kPattern},
                                                 {"identifiers", kIdentifiersPattern},
                                                 {"lines", kLinesPattern}};
  return rows;
}

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const NamedPattern& row : named_patterns()) names.emplace_back(row.name);
  return names;
}

std::string to_pcre2_pattern(std::string_view pattern, bool with_added_characters) {
  return PatternTranslator(pattern, with_added_characters).translate();
}

std::string word_character_pattern() {
  std::string pattern = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
  for (const std::string_view members :
       {kAddedLu, kAddedLl, kAddedLm, kAddedLo, kAddedM, kAddedNd}) {
    pattern += members;
  }
  return pattern + "]";
}

std::string added_characters_pattern() {
  std::string pattern = "[";
  for (const std::string_view members :
       {kAddedLu, kAddedLl, kAddedLm, kAddedLo, kAddedM, kAddedNd, kAddedNo, kAddedP, kAddedS}) {
    pattern += members;
  }
  return pattern + "]";
}

}  // namespace llmtrain::data
