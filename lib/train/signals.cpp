#include "lib/train/signals.hpp"

#include <csignal>
#include <initializer_list>
#include <unistd.h>

namespace llmtrain::train {

namespace {

volatile std::sig_atomic_t g_signal = 0;

extern "C" void on_signal(int signal) {
  if (signal == SIGINT && g_signal == SIGINT) ::_exit(128 + SIGINT);
  g_signal = signal;
}

}  // namespace

void install_signal_handlers() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() { return g_signal; }

}  // namespace llmtrain::train
