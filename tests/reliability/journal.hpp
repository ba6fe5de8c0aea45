#pragma once
/// The cases of a class of faults: which are tried, what was tried before, what was violated.

#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace llmtrain::test {

/// Without LLMTRAIN_RELIABILITY every `stride`-th case is tried, which takes seconds. With it, a
/// directory, all of them are, but for those that a file there says were tried and held: a run that
/// was interrupted goes on. A line of `<class>.txt` is "held" or "VIOLATED", a tab, the name of the
/// case, and what was violated. What was violated once stays so, whatever comes of another try. A
/// case that its fault did not hit is tried twice again, and is no case then ("missed"); of twenty
/// no more than one may be.
class Journal {
 public:
  Journal(const std::string& class_name, int stride);

  /// What a body returns when nothing was hit, and all that holds of such a run does.
  static constexpr std::string_view kMissed = "missed";

  /// Tries a case; `body` says what it found violated, or "". What it throws is a violation.
  void run(const std::string& name, const std::function<std::string()>& body);
  bool tries_all() const { return !file_.empty(); }
  /// Checks that something was tried and nothing violated, ever.
  void check() const;

 private:
  std::filesystem::path file_;
  int stride_;
  int cases_ = 0;
  int tried_ = 0;
  int missed_ = 0;
  int violated_ = 0;
  std::set<std::string> held_;
};

}  // namespace llmtrain::test
