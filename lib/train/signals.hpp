#pragma once
/// Requests to stop: SIGTERM, SIGUSR1 and SIGINT only set a flag, which every loop polls.

namespace llmtrain::train {

/// Installs the handlers. A second SIGINT ends the process at once.
void install_signal_handlers();
/// The signal that asked to stop, or 0.
int stop_signal();

}  // namespace llmtrain::train
