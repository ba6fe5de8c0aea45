#pragma once
/// What happens to a rank of the tests' own executable at a moment of its run. The environment
/// says:
///
///   PHASE_AT     init, data, check, load, forward, backward, reduce, optimizer, save,
///                evaluation, end
///   PHASE_STEP   in which step, of what happens in each
///   PHASE_RANK   the rank that comes to the moment
///   PHASE_DO     kill, stop, segv, abort, exit, throw, spin, read: what becomes of it;
///                or "signal NAME RANK..." (TERM, USR1, INT): who gets a signal from it
///   PHASE_PIDS   a directory, in which each rank leaves its process id

#include <cstdint>
#include <string_view>

namespace llmtrain::test {

/// The rank is there; happens once in a process.
void pass_phase(std::string_view phase);
/// From here on the rank is in this step of its own device; 0: in none.
void enter_step(std::int64_t step);
bool in_step();
void leave_pid();

}  // namespace llmtrain::test
