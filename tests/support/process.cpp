#include "tests/support/process.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace llmtrain::test {

namespace {

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::string& directory,
                         const ProcessEvents& events, int output) {
  ::dup2(output, 1);
  ::dup2(output, 2);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, 0);
  if (::chdir(directory.c_str()) != 0) ::_exit(126);
  if (events.largest_file_bytes) {
    const rlimit limit{*events.largest_file_bytes, *events.largest_file_bytes};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(125);
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& directory,
                          const ProcessEvents& events) {
  std::array<int, 2> pipe_ends{};
  ProcessResult result;
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return result;
  if (events.signal != 0) ::fcntl(pipe_ends[1], F_SETPIPE_SZ, 4096);
  const pid_t child = ::fork();
  if (child == 0) become(arguments, directory, events, pipe_ends[1]);
  ::close(pipe_ends[1]);
  const auto start = std::chrono::steady_clock::now();
  const bool kills = events.kill_after_seconds >= 0;
  const double limit = kills ? events.kill_after_seconds : events.limit_seconds;
  bool killed = false;
  bool signalled = events.signal == 0;
  while (true) {
    const double left =
        limit - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (left <= 0 && !killed) {
      ::kill(child, SIGKILL);
      killed = true;
      result.timed_out = !kills;
    }
    pollfd poll_end{.fd = pipe_ends[0], .events = POLLIN, .revents = 0};
    if (::poll(&poll_end, 1, killed ? -1 : static_cast<int>(left * 1000) + 1) <= 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t n = ::read(pipe_ends[0], buffer.data(), buffer.size());
    if (n <= 0) break;
    result.output.append(buffer.data(), static_cast<std::size_t>(n));
    if (!signalled && result.output.find(events.signal_after) != std::string::npos) {
      ::kill(child, events.signal);
      signalled = true;
    }
  }
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

}  // namespace llmtrain::test
