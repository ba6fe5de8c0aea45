// Rules over several keys, and what they must not be asked about.
#include <optional>

#include <doctest/doctest.h>

#include "tests/unit/recipe/sample.hpp"

namespace llmtrain::recipe {

using namespace sample;

namespace {

// Rules that cannot even be computed with what stands in for a value that is not there.
struct DivisorOptions : Section {
  Required<int> divisor{this, "divisor", "a number that divides 100", at_least(1)};
  void validate(Issues& issues) const override {
    if (100 % divisor() != 0) issues.add(divisor, "does not divide 100");
  }
};
struct DivisorRow {
  std::string_view name, doc;
  std::unique_ptr<Section> (*options)();
};
constexpr DivisorRow kDivisorRows[] = {{"one", "the only row", &section_of<DivisorOptions>}};
struct DivisorRoot : Section {
  Sub<DivisorOptions> part{this, "part", "a section"};
  OptionalSub<DivisorOptions> maybe{this, "maybe", "an optional section"};
  List<DivisorOptions> list{this, "list", "a list"};
  Choice<DivisorRow> choice{this, "choice", kDivisorRows, "", "a choice"};
  void validate(Issues& issues) const override {
    const auto check = [&](const DivisorOptions& options) {
      if (50 % options.divisor() == 0) issues.add(options.divisor, "divides 50");
    };
    check(part);
    if (maybe) check(maybe);
    for (std::size_t i = 0; i < list.size(); ++i) check(list[i]);
    if (choice().name == "one") check(choice.as<DivisorOptions>());
  }
};

std::vector<std::string> divisor_issues(const std::string& text) {
  DivisorRoot root;
  return issues_of(root, request(text));
}

}  // namespace

TEST_CASE("rules are not even asked about what was refused, is missing, or lies inside it") {
  CHECK(divisor_issues("part: {divisor: 4}\nchoice: one\ndivisor: 4").empty());
  CHECK(divisor_issues("part: {divisor: 5}\nchoice: one\ndivisor: 4").size() == 1);
  const std::string rest = "\nchoice: one\ndivisor: 4\n";
  CHECK(divisor_issues("part: {}" + rest).size() == 1);
  CHECK(divisor_issues("part: {divisor: 0}" + rest).size() == 1);
  CHECK(divisor_issues("part: {divisor: x}" + rest).size() == 1);
  CHECK(divisor_issues("part: 5" + rest).size() == 1);
  CHECK(divisor_issues("part: {divisor: 4}\nmaybe: 5" + rest).size() == 1);
  CHECK(divisor_issues("part: {divisor: 4}\nmaybe: {}" + rest).size() == 1);
  CHECK(divisor_issues("part: {divisor: 4}\nlist: [{divisor: 4}, 5, {divisor: 0}]" + rest).size() ==
        2);
  CHECK(divisor_issues("part: {divisor: 4}").size() == 1);
  CHECK(divisor_issues("part: {divisor: 4}\nchoice: two").size() >= 1);
  CHECK(divisor_issues("x-nothing: 1").size() == 2);
}

TEST_CASE("after a load with issues every key may be read") {
  DivisorRoot root;
  CHECK(issues_of(root, request("part: 5")).size() == 2);
  CHECK(root.part.divisor() == 0);
  CHECK(root.choice().name == "one");
  CHECK_FALSE(root.maybe);
}

}  // namespace llmtrain::recipe
