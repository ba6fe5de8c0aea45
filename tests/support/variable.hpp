#pragma once
/// Environment variables of a test.

#include <cstdlib>

namespace llmtrain::test {

/// One that this process, and those that it starts, have for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace llmtrain::test
