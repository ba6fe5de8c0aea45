#include "lib/data/regex.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <pcre2.h>

#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kMaxPatternBytes = 16384;
// Backtracking steps per match; a sane tokenizer pattern needs a few per character.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 65536;
constexpr std::size_t kJitStackStartBytes = 32 * 1024;
constexpr std::size_t kJitStackMaxBytes = 4 * 1024 * 1024;
constexpr std::uint32_t kWholeMatchOnly = 1;

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

/// `shown` is the pattern as the user wrote it.
Code compile(const std::string& pattern, std::string_view shown) {
  const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_parens_nest_limit(context.get(), 50);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get()));
  require<DataError>(code != nullptr, "pattern '{}': {}; correct the pattern", shown,
                     pcre2_message(error));
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  require<DataError>(matches_empty == 0,
                     "pattern '{}' matches the empty string; use one that does not", shown);
  // Without JIT (a system that forbids it) pcre2_match interprets: slower, the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

MatchData match_data() {
  MatchData data(pcre2_match_data_create(kWholeMatchOnly, nullptr));
  if (!data) throw std::bad_alloc();
  return data;
}

/// A pattern of ours, matched without limits.
bool matches(const Code& code, std::string_view text) {
  return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                     PCRE2_NO_UTF_CHECK, match_data().get(), nullptr) >= 0;
}

}  // namespace

bool has_added_characters(std::string_view text) {
  // The first of them is U+0897, whose UTF-8 starts with 0xE0.
  const bool possible = std::any_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) >= 0xE0; });
  if (!possible) return false;
  static const Code finder = compile(added_characters_pattern(), "added characters");
  return matches(finder, text);
}

bool is_word_character(std::uint32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= 'a' && code_point <= 'z') || (code_point >= 'A' && code_point <= 'Z') ||
           (code_point >= '0' && code_point <= '9') || code_point == '_';
  }
  static const Code word = compile(word_character_pattern(), "word characters");
  std::string text;
  append_utf8(code_point, text);
  return matches(word, text);
}

struct Regex::Program {
  std::string pattern;
  Code code;         // for texts without added characters
  Code slower_code;  // for all texts
};

Regex::Regex(std::string pattern) {
  require<DataError>(pattern.size() <= kMaxPatternBytes,
                     "pattern of {} bytes; at most {} are accepted", pattern.size(),
                     kMaxPatternBytes);
  require<DataError>(valid_utf8_prefix(pattern) == pattern.size(), "pattern is not valid UTF-8");
  auto program = std::make_shared<Program>();
  program->code = compile(to_pcre2_pattern(pattern, false), pattern);
  program->slower_code = compile(to_pcre2_pattern(pattern, true), pattern);
  program->pattern = std::move(pattern);
  program_ = std::move(program);
}

const std::string& Regex::pattern() const { return program_->pattern; }

struct Regex::Matcher::State {
  std::shared_ptr<const Program> program;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> jit_stack;
  MatchData match;
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->program = regex.program_;
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->jit_stack.reset(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr));
  if (!state_->context || !state_->jit_stack) throw std::bad_alloc();
  pcre2_set_match_limit(state_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(state_->context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->jit_stack.get());
  state_->match = match_data();
}

Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher& Regex::Matcher::operator=(Matcher&&) noexcept = default;

bool Regex::Matcher::find(std::string_view text, std::size_t from, bool has_added,
                          std::size_t& begin, std::size_t& end) {
  const Program& program = *state_->program;
  const pcre2_code* code = has_added ? program.slower_code.get() : program.code.get();
  const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK, state_->match.get(), state_->context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  // 0 is a match too: only the groups, which nobody reads, found no room.
  if (result < 0) {
    fail<DataError>(
        "pattern '{}' fails on a text of {} bytes: {}; use a simpler pattern or shorter documents",
        program.pattern, text.size(), pcre2_message(result));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->match.get());
  begin = range[0];
  end = range[1];
  require<DataError>(begin >= from && end > begin, "pattern '{}' matches the empty string",
                     program.pattern);
  return true;
}

}  // namespace llmtrain::data
