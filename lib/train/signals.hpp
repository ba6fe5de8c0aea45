#pragma once
/// Requests to stop: SIGTERM, SIGUSR1 and SIGINT only set a flag, which every loop polls.

namespace llmtrain::train {

/// Installs the handlers. A second SIGINT ends the process at once; writing to a pipe that nobody
/// reads any more is an error of that write and ends nothing.
void install_signal_handlers();
/// The signal that asked to stop, or 0.
int stop_signal();

}  // namespace llmtrain::train
