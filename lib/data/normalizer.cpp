#include "lib/data/normalizer.hpp"

#include <array>
#include <utility>

#include "lib/base/utf8.hpp"
#include "lib/data/json_field.hpp"
#include "lib/data/replacer.hpp"
#include "lib/data/unicode.hpp"

namespace llmtrain::data {

namespace {

using Step = NormalizerType::Step;

/// A step for valid UTF-8 as one for any bytes: it sees each run for itself.
template <class Valid>
Step by_runs(Valid step) {
  return [step = std::move(step)](std::string_view text, std::string& out, std::size_t limit) {
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (valid > 0) step(text.substr(0, valid), out, limit);
      text.remove_prefix(valid);
      const std::size_t invalid = invalid_utf8_prefix(text);
      out += text.substr(0, invalid);
      text.remove_prefix(invalid);
    }
  };
}

template <UnicodeForm form>
Step make_form(const Field&) {
  return by_runs([](std::string_view text, std::string& out, std::size_t) {
    append_normalized(form, text, out);
  });
}

template <void (*transform)(std::string_view text, std::string& out)>
Step make_transform(const Field&) {
  return by_runs(
      [](std::string_view text, std::string& out, std::size_t) { transform(text, out); });
}

Step make_prepend(const Field& field) {
  return
      [prefix = field["prepend"].string()](std::string_view text, std::string& out, std::size_t) {
        if (!text.empty()) out.append(prefix).append(text);
      };
}

Step make_replace(const Field& field) {
  return by_runs(
      [replacer = Replacer(field)](std::string_view text, std::string& out, std::size_t limit) {
        replacer.append(text, out, limit);
      });
}

Step make_strip(const Field& field) {
  const bool left = field["strip_left"].boolean(false);
  const bool right = field["strip_right"].boolean(false);
  return [left, right](std::string_view text, std::string& out, std::size_t) {
    if (left) text.remove_prefix(leading_white_space(text));
    if (right) text.remove_suffix(trailing_white_space(text));
    out += text;
  };
}

constexpr std::array kTypes = {
    NormalizerType{"NFC", true, make_form<UnicodeForm::nfc>},
    NormalizerType{"NFD", true, make_form<UnicodeForm::nfd>},
    NormalizerType{"NFKC", true, make_form<UnicodeForm::nfkc>},
    NormalizerType{"NFKD", true, make_form<UnicodeForm::nfkd>},
    NormalizerType{"Lowercase", true, make_transform<append_lower_case>},
    NormalizerType{"StripAccents", false, make_transform<append_without_marks>},
    NormalizerType{"Strip", false, make_strip},
    NormalizerType{"Prepend", false, make_prepend},
    NormalizerType{"Replace", false, make_replace},
};

}  // namespace

std::span<const NormalizerType> normalizer_types() { return kTypes; }

Normalizer::Normalizer(const Field& field) : json_(field.dump()) {
  if (!field.is_null()) add(field);
}

void Normalizer::add(const Field& field) {
  if (field["type"].string() == "Sequence") {
    const Field steps = field["normalizers"];
    const std::size_t count = steps.array_size();
    for (std::size_t i = 0; i < count; ++i) add(steps.at(i));
    return;
  }
  const NormalizerType& row = field.row_of(normalizer_types());
  steps_.push_back(row.make(field));
  keeps_start_ = keeps_start_ && row.keeps_start;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string before(text);
  std::string after;
  for (const Step& step : steps_) {
    after.clear();
    step(before, after, growth_limit(text.size()));
    std::swap(before, after);
  }
  return before;
}

}  // namespace llmtrain::data
