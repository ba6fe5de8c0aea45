#include "tests/e2e/states_page.hpp"

#include <cctype>
#include <cstdlib>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain {

namespace {

class Formula {
 public:
  Formula(std::string_view text, const Sizes& sizes) : whole_(text), sizes_(&sizes) {
    for (const char c : text) {
      if (c != '`') text_ += c;
    }
  }
  double value() {
    const double found = sum();
    require(next() == '\0', "`{}` is no formula from `{}` on", whole_, text_.substr(at_));
    return found;
  }

 private:
  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  double sum() {
    double found = product();
    for (;;) {
      if (take('+')) {
        found += product();
      } else if (take('-')) {
        found -= product();
      } else {
        return found;
      }
    }
  }
  double product() {
    double found = factor();
    for (;;) {
      const char c = next();
      if (take('/')) {
        found /= factor();
      } else if (take('*') || c == '(' || std::isalnum(static_cast<unsigned char>(c)) != 0) {
        found *= factor();
      } else {
        return found;
      }
    }
  }
  double factor() {
    if (take('(')) {
      const double found = sum();
      require(take(')'), "`{}` has no closing parenthesis", whole_);
      return found;
    }
    const std::size_t begin = (next(), at_);
    const auto is_part = [&](char c) {
      return c == '.' || c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    if (const auto size = sizes_->find(word); size != sizes_->end()) return size->second;
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    require(!word.empty() && *end == '\0', "`{}` has no number or size at `{}`", whole_,
            text_.substr(begin));
    return number;
  }

  std::string whole_, text_;
  std::size_t at_ = 0;
  const Sizes* sizes_;
};

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') + 1 - begin));
}

/// Between the bars of a line of a table.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  for (std::size_t at = 1; at < line.size();) {
    const std::size_t end = line.find('|', at);
    if (end == line.npos) break;
    cells.push_back(trimmed(line.substr(at, end - at)));
    at = end + 1;
  }
  return cells;
}

/// What stands in backticks.
std::vector<std::string> names_in(std::string_view cell) {
  std::vector<std::string> names;
  for (std::size_t at = cell.find('`'); at != cell.npos;) {
    const std::size_t end = cell.find('`', at + 1);
    names.emplace_back(cell.substr(at + 1, end - at - 1));
    at = cell.find('`', end + 1);
  }
  return names;
}

}  // namespace

double value_of(std::string_view formula, const Sizes& sizes) {
  return Formula(formula, sizes).value();
}

double StatesRow::bytes(bool wide, std::size_t alternative, const Sizes& sizes) const {
  std::vector<std::string> all{wide ? fp64 : fp32};
  for (const std::string_view border : {"; ", " to ", ", else "}) {
    const std::size_t at = all.front().find(border);
    if (at == std::string::npos) continue;
    all.push_back(all.front().substr(at + border.size()));
    all.front().resize(at);
  }
  require(alternative < all.size(), "{}: {} alternatives", wide ? fp64 : fp32, all.size());
  return value_of(all[alternative], sizes);
}

double StatesRow::in_text(std::string_view before, std::string_view behind,
                          const Sizes& sizes) const {
  const std::size_t at = states.find(before);
  require(at != states.npos, "`{}` does not say `{}`", states, before);
  require(states.find(before, at + 1) == states.npos, "`{}` says `{}` twice", states, before);
  const std::size_t begin = at + before.size(),
                    end = behind.empty() ? states.size() : states.find(behind, begin);
  require(end != states.npos, "`{}` does not say `{}` behind `{}`", states, behind, before);
  return value_of(std::string_view(states).substr(begin, end - begin), sizes);
}

std::vector<StatesRow> states_table() {
  const std::string page = read_file(test_file("../docs/optimizers.md"));
  std::vector<StatesRow> rows;
  const std::string head = "| name | states | FP32 | FP64 |\n|---|---|---|---|\n";
  const std::size_t begin = page.find(head);
  require(begin != page.npos, "docs/optimizers.md has no table of states");
  for (std::size_t at = begin + head.size(); page[at] == '|';) {
    const std::size_t end = page.find('\n', at);
    const std::vector<std::string> cells = cells_of(std::string_view(page).substr(at, end - at));
    require(cells.size() == 4, "a row of the table of states has {} cells", cells.size());
    rows.push_back({names_in(cells[0]), cells[1], cells[2], cells[3]});
    at = end + 1;
  }
  return rows;
}

const StatesRow& row_of(const std::vector<StatesRow>& table, std::string_view name) {
  for (const StatesRow& row : table) {
    for (const std::string& of_row : row.names) {
      if (of_row == name) return row;
    }
  }
  throw InternalError("the table of states has no row of " + std::string(name));
}

}  // namespace llmtrain
