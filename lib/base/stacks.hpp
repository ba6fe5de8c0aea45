#pragma once
/// The call stacks of this process, as it runs.

#include <string>

namespace llmtrain {

/// A paragraph for each thread: its number and name, and its calls, innermost first, as
/// "file(function+offset)" (`addr2line -e file` knows lines, where the build has them). Each thread
/// is stopped for a moment by a signal; one that does not answer within 0.2 s, because the kernel
/// holds it, is named without calls. Threads are asked one after another: together they are no
/// picture of one instant. One caller at a time, others wait.
std::string thread_stacks();

}  // namespace llmtrain
