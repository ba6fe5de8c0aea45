#include "tests/reliability/journal.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fstream>

#include <doctest/doctest.h>

namespace llmtrain::test {

namespace {
constexpr std::string_view kHeld = "held\t", kViolated = "VIOLATED\t";

std::string outcome(const std::function<std::string()>& body) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    try {
      if (std::string violation = body(); violation != Journal::kMissed) return violation;
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  return std::string(Journal::kMissed);
}
}  // namespace

Journal::Journal(const std::string& class_name, int stride) : stride_(stride) {
  const char* const directory = std::getenv("LLMTRAIN_RELIABILITY");
  if (directory == nullptr) return;
  std::filesystem::create_directories(directory);
  file_ = std::filesystem::path(directory) / (class_name + ".txt");
  std::ifstream in(file_);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(kHeld)) held_.insert(line.substr(kHeld.size()));
    violated_ += line.starts_with(kViolated) ? 1 : 0;
  }
}

void Journal::run(const std::string& name, const std::function<std::string()>& body) {
  const int number = cases_++;
  if (tries_all() ? held_.contains(name) : number % stride_ != 0) return;
  ++tried_;
  std::string violation = outcome(body);
  if (violation == kMissed) {
    ++missed_;
    if (tries_all()) std::ofstream(file_, std::ios::app) << kMissed << '\t' << name << std::endl;
    return;
  }
  std::replace(violation.begin(), violation.end(), '\n', '|');
  CAPTURE(name);
  CHECK(violation == "");
  violated_ += violation.empty() ? 0 : 1;
  if (!tries_all()) return;
  std::ofstream out(file_, std::ios::app);
  out << (violation.empty() ? kHeld : kViolated) << name
      << (violation.empty() ? "" : "\t" + violation) << std::endl;
}

void Journal::check() const {
  MESSAGE(cases_, " cases, ", tried_, " tried now, ", missed_, " of them missed");
  CHECK(cases_ > 0);
  CHECK((tries_all() || tried_ > missed_));
  CHECK(missed_ * 20 <= (tries_all() ? cases_ : tried_ + 19));
  CHECK(violated_ == 0);
}

}  // namespace llmtrain::test
