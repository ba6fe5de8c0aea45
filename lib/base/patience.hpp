#pragma once
/// How long a process has waited for others: not while its system had stopped it.

#include <chrono>

namespace llmtrain {

/// From here on SIGCONT is noticed: a job that was suspended (`scontrol suspend`, SIGSTOP, a
/// shell's ^Z) and goes on has waited for nobody meanwhile. All ranks are suspended together, but
/// none of them continues at the same time as the others.
void notice_resumption();
/// Seconds since `begin`, or since the process went on, whichever is later.
std::chrono::duration<double> waited_since(std::chrono::steady_clock::time_point begin);
/// Whether that is more than `limit`.
bool waited_longer(std::chrono::steady_clock::time_point begin,
                   std::chrono::duration<double> limit);

}  // namespace llmtrain
