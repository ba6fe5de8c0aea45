#pragma once
/// The headers of the C++ standard library with copies planted among them, and the truth about
/// them, computed without the code under test.

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::data {

/// Word 5-grams of a text, as strings: what near duplicates are judged by.
std::set<std::string> word_5grams(std::string_view text);
/// |a and b| / |a or b|
double true_jaccard(const std::set<std::string>& a, const std::set<std::string>& b);

struct PlantedCopy {
  std::string name;      ///< of the copy
  std::string original;  ///< name of the header
  std::string text;
  double jaccard = 0;  ///< true, of copy and header; 1 if the copy is exact
  bool exact = false;
};

/// Name and text of every header of the compiler's standard library.
std::vector<std::pair<std::string, std::string>> standard_headers();

/// Every third header of at least 100 words gets an exact copy; every other one a copy in which
/// words are replaced, taken out, doubled, or lines moved, at a rate that differs from copy to
/// copy. Always the same.
std::vector<PlantedCopy> plant_copies(
    const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace llmtrain::data
