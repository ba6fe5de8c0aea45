#include "lib/train/checkpoint_section.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace llmtrain::recipe {

namespace {

using Mode = train::Resume::Mode;

struct Word {
  std::string_view word;
  Mode mode;
};
constexpr std::array<Word, 3> kWords{
    {{"auto", Mode::automatic}, {"never", Mode::never}, {"must", Mode::must}}};

}  // namespace

bool Codec<train::Resume>::read(const Node& node, const Rules&, train::Resume& out,
                                Problems& problems) {
  for (const Word& row : kWords) {
    if (node.kind == Node::Kind::scalar && node.text == row.word) {
      out = {row.mode};
      return true;
    }
  }
  Count step;
  Problems unsaid;
  if (!read_leaf(node, Rule{}, step, unsaid)) {
    return wrong_type(node, "auto, must, never or the number of a step", problems);
  }
  out = {Mode::step, step.value};
  return true;
}

std::string Codec<train::Resume>::write(const train::Resume& value, const Rules&) {
  const auto row = std::ranges::find(kWords, value.mode, &Word::mode);
  return row == kWords.end() ? write_leaf(value.step) : std::string(row->word);
}

TypeInfo Codec<train::Resume>::type(const Rules&) {
  TypeInfo info = leaf_type(Count{});
  info.noun = "name or step";
  info.examples = "auto, must, never, 1200";
  info.pattern = "^(auto|must|never)$";
  return info;
}

}  // namespace llmtrain::recipe

namespace llmtrain::train {

namespace {

// Of two of one unit; steps and seconds cannot be compared.
bool is_no_smaller(const recipe::Interval& a, const recipe::Interval& b) {
  if (a.unit != b.unit) return false;
  return a.unit == recipe::Interval::Unit::steps ? a.count >= b.count : a.seconds >= b.seconds;
}

}  // namespace

void CheckpointSection::validate(recipe::Issues& issues) const {
  // By value, not by who gave it: a resolved recipe names every key.
  const auto is_default = [](const recipe::ValueEntry& key) {
    return key.value_text() == key.default_text();
  };
  if (!is_default(async_share) && !async()) {
    issues.add(async_share, "does nothing without checkpoint.async",
               "leave it out, or set checkpoint.async: true");
  }
  if (!local.directory()) {
    for (const recipe::ValueEntry* key :
         {static_cast<const recipe::ValueEntry*>(&local.interval),
          static_cast<const recipe::ValueEntry*>(&local.keep_latest)}) {
      if (is_default(*key)) continue;
      issues.add(*key, "does nothing without checkpoint.local.directory", "leave it out");
    }
    return;
  }
  const recipe::Interval often = local.interval();
  if (interval() && is_no_smaller(often, *interval())) {
    issues.add(local.interval,
               fmt::format("{} is no smaller than checkpoint.interval {}: nothing would be saved "
                           "there",
                           local.interval.value_text(), interval.value_text()),
               "save there more often");
  } else if (keep_every() > 0 && often.unit == recipe::Interval::Unit::steps &&
             often.count % keep_every() == 0) {
    issues.add(
        local.interval,
        fmt::format("its steps are multiples of checkpoint.keep_every {}, which are saved in "
                    "run.output_dir: nothing would be saved there",
                    keep_every().value),
        "save there more often");
  }
}

}  // namespace llmtrain::train
