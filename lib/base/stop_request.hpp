#pragma once
/// Requests to stop: SIGTERM, SIGUSR1, SIGINT and SIGHUP only set a flag, which every loop polls; the end
/// of a job's time is a request, too.

#include <string_view>

#include "lib/base/error.hpp"

namespace llmtrain {

/// Asked to stop before there was anything to save: what is done so far is on the disk, and the
/// next start goes on from there.
class Stopped : public ErrorWith<ExitCode::preempted> {
  using ErrorWith::ErrorWith;
};

/// Until the handlers below are installed, a request ends the process at once, with 75: while it
/// waits for others to start, nobody polls and there is nothing to save. A process that a launcher
/// started with others, who may be the reason, does not ask for another try.
void leave_on_stop_signals(bool with_others);
/// Installs the handlers. A second SIGINT ends the process at once, with 128 + SIGINT; writing to a
/// pipe that nobody reads any more is an error of that write and ends nothing; SIGCONT is noticed
/// (patience.hpp).
void install_stop_handlers();
/// The signal that asked to stop, or 0.
int stop_signal();
/// The end of the job's time asks from here on, in seconds since 1970.
void stop_from(double unix_seconds);
/// Whether stop_if_asked() would throw.
bool is_asked_to_stop();
/// Throws Stopped, naming what is being done ("preparing the data"), if a signal asked to stop or
/// the job's time ends. For loops before the first step, on any thread.
void stop_if_asked(std::string_view doing);

}  // namespace llmtrain
