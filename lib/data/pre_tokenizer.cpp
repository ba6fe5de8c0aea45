#include "lib/data/pre_tokenizer.hpp"

#include <utility>

#include "lib/base/utf8.hpp"

namespace llmtrain::data {

PreTokenizer::PreTokenizer(PreTokenizerOptions options) : options_(std::move(options)) {
  for (const std::string& pattern : options_.patterns) patterns_.emplace_back(pattern);
}

PreTokenizer::PreTokenizer(std::vector<std::string> patterns)
    : PreTokenizer(PreTokenizerOptions{.patterns = std::move(patterns),
                                       .prefix_space_after = std::nullopt,
                                       .metaspace = std::nullopt}) {}

PreTokenizer::Worker::Worker(const PreTokenizer& owner) : owner_(&owner) {
  for (const Regex& pattern : owner.patterns_) matchers_.emplace_back(pattern);
}

void PreTokenizer::Worker::split(std::string_view text, const Emit& emit, bool at_start) {
  const char* const begin = text.data();
  start_ = at_start ? begin : nullptr;
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) {
      const std::string_view run = text.substr(0, valid);
      behind_stray_ = run.data() == begin ? nullptr : run.data();
      has_added_ = !owner_->patterns_.empty() && has_added_characters(run);
      split_valid(0, run, emit);
    }
    text.remove_prefix(valid);
    const std::size_t invalid = invalid_utf8_prefix(text);
    if (invalid > 0) emit(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

void PreTokenizer::Worker::split_valid(std::size_t stage, std::string_view text, const Emit& emit) {
  const bool prefix = owner_->options_.prefix_space_after == stage;
  if (prefix && !text.starts_with(' ') && text.data() != behind_stray_) {
    prefixed_.clear();
    prefixed_.push_back(' ');
    prefixed_.append(text);
    text = prefixed_;
  }
  if (stage == matchers_.size()) return finish(text, emit);
  std::size_t done = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (done < text.size() && matchers_[stage].find(text, done, has_added_, begin, end)) {
    if (begin > done) split_valid(stage + 1, text.substr(done, begin - done), emit);
    split_valid(stage + 1, text.substr(begin, end - begin), emit);
    done = end;
  }
  if (done < text.size()) split_valid(stage + 1, text.substr(done), emit);
}

void PreTokenizer::Worker::finish(std::string_view text, const Emit& emit) {
  if (!owner_->options_.metaspace) return emit(text);
  const Metaspace& metaspace = *owner_->options_.metaspace;
  const std::string& mark = metaspace.replacement;
  const bool prepend = metaspace.prepend == Metaspace::Prepend::always ||
                       (metaspace.prepend == Metaspace::Prepend::first && text.data() == start_);
  replaced_.clear();
  if (prepend && text.data() != behind_stray_ && !text.starts_with(' ') && !text.starts_with(mark))
    replaced_ = mark;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    replaced_ += text.substr(0, space);
    if (space == text.npos) break;
    replaced_ += mark;
    text.remove_prefix(space + 1);
  }
  if (!metaspace.split) return emit(replaced_);
  std::string_view rest = replaced_;
  while (!rest.empty()) {
    const std::size_t next = rest.find(mark, 1);
    emit(rest.substr(0, next));
    if (next == rest.npos) break;
    rest.remove_prefix(next);
  }
}

}  // namespace llmtrain::data
