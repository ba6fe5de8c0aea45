#include "lib/data/pre_tokenizer.hpp"

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

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct PreTokenizer::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;

  /// `shown` is the pattern as the user wrote it.
  Code(const std::string& pattern, std::string_view shown) {
    const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
        pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_parens_nest_limit(context.get(), 50);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get()));
    require<DataError>(code != nullptr, "split pattern '{}': {}", shown, pcre2_message(error));
    std::uint32_t matches_empty = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    require<DataError>(matches_empty == 0, "split pattern '{}' matches the empty string", shown);
    // Without JIT (a system that forbids it) pcre2_match interprets: slower, the same matches.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  }
};

PreTokenizer::PreTokenizer(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {
  for (const std::string& pattern : patterns_) {
    require<DataError>(pattern.size() <= kMaxPatternBytes,
                       "split pattern of {} bytes; at most {} are accepted", pattern.size(),
                       kMaxPatternBytes);
    require<DataError>(valid_utf8_prefix(pattern) == pattern.size(),
                       "split pattern is not valid UTF-8");
    codes_.emplace_back(to_pcre2_pattern(pattern, false), pattern);
    slower_codes_.emplace_back(to_pcre2_pattern(pattern, true), pattern);
  }
  finder_.emplace_back(added_characters_pattern(), "added characters");
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

struct PreTokenizer::Worker::State {
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> jit_stack;
  const std::vector<Code>* codes = nullptr;  // those that serve the text in work
  // One per pattern: a later pattern runs while an earlier one's match is still in use.
  std::vector<std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>> matches;
};

PreTokenizer::Worker::Worker(const PreTokenizer& owner)
    : owner_(&owner), state_(std::make_unique<State>()) {
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->jit_stack.reset(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr));
  if (!state_->context || !state_->jit_stack) throw std::bad_alloc();
  pcre2_set_match_limit(state_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(state_->context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->jit_stack.get());
  constexpr std::uint32_t kWholeMatchOnly = 1;
  for (std::size_t i = 0; i < std::max<std::size_t>(owner.codes_.size(), 1); ++i) {
    state_->matches.emplace_back(pcre2_match_data_create(kWholeMatchOnly, nullptr));
    if (!state_->matches.back()) throw std::bad_alloc();
  }
}

PreTokenizer::Worker::~Worker() = default;
PreTokenizer::Worker::Worker(Worker&&) noexcept = default;
PreTokenizer::Worker& PreTokenizer::Worker::operator=(Worker&&) noexcept = default;

void PreTokenizer::Worker::split(std::string_view text, const Emit& emit) {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) {
      const std::string_view run = text.substr(0, valid);
      state_->codes = has_added_characters(run) ? &owner_->slower_codes_ : &owner_->codes_;
      split_valid(0, run, emit);
    }
    text.remove_prefix(valid);
    const std::size_t invalid = invalid_utf8_prefix(text);
    if (invalid > 0) emit(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

bool PreTokenizer::Worker::has_added_characters(std::string_view text) {
  if (owner_->codes_.empty()) return false;
  const int result =
      pcre2_match(owner_->finder_[0].code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), 0, PCRE2_NO_UTF_CHECK, state_->matches[0].get(), nullptr);
  return result != PCRE2_ERROR_NOMATCH;
}

void PreTokenizer::Worker::split_valid(std::size_t stage, std::string_view text, const Emit& emit) {
  if (stage == state_->codes->size()) return emit(text);
  const pcre2_code* code = (*state_->codes)[stage].code.get();
  pcre2_match_data* match = state_->matches[stage].get();
  std::size_t done = 0;
  while (done < text.size()) {
    const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   done, PCRE2_NO_UTF_CHECK, match, state_->context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    // 0 is a match too: only the groups, which nobody reads, found no room.
    if (result < 0) {
      fail<DataError>(
          "split pattern '{}' fails on a text of {} bytes: {}; use a simpler pattern or shorter "
          "documents",
          owner_->patterns_[stage], text.size(), pcre2_message(result));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    require<DataError>(begin >= done && end > begin, "split pattern '{}' matches the empty string",
                       owner_->patterns_[stage]);
    if (begin > done) split_valid(stage + 1, text.substr(done, begin - done), emit);
    split_valid(stage + 1, text.substr(begin, end - begin), emit);
    done = end;
  }
  if (done < text.size()) split_valid(stage + 1, text.substr(done), emit);
}

}  // namespace llmtrain::data
