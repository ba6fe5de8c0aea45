#include "lib/base/stacks.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <cxxabi.h>
#include <execinfo.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <semaphore.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

namespace llmtrain {

namespace {

constexpr int kMaxFrames = 64;

// What a thread that is asked leaves here: a handler can take no argument.
struct Answer {
  std::array<void*, kMaxFrames> frames{};
  int count = 0;
  /// The thread that is asked; kAnswering while it writes the above; 0: nobody, or it is done. Who
  /// comes too late finds another number and writes nothing.
  std::atomic<pid_t> asked{0};
  sem_t there{};
};
constexpr pid_t kAnswering = -1;
static_assert(std::atomic<pid_t>::is_always_lock_free);
Answer g_answer;

int stack_signal() { return SIGRTMIN + 6; }

extern "C" void leave_stack(int) {
  const int error = errno;
  pid_t self = static_cast<pid_t>(::syscall(SYS_gettid));
  if (g_answer.asked.compare_exchange_strong(self, kAnswering)) {
    g_answer.count = ::backtrace(g_answer.frames.data(), kMaxFrames);
    g_answer.asked = 0;
    ::sem_post(&g_answer.there);
  }
  errno = error;
}

void install() {
  ::sem_init(&g_answer.there, 0, 0);
  // The first call loads a library, which no handler may do.
  ::backtrace(g_answer.frames.data(), 1);
  struct sigaction action {};
  action.sa_handler = leave_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
}

// "./llmtrain(_ZN8llmtrain3fooEv+0x1c) [0x4005d4]" with the function's name as people write it.
std::string readable(std::string_view frame) {
  const std::size_t open = frame.find('('), plus = frame.find('+', open);
  if (open == std::string_view::npos || plus == std::string_view::npos) return std::string(frame);
  const std::string mangled(frame.substr(open + 1, plus - open - 1));
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return std::string(frame);
  return fmt::format("{}({}{}", frame.substr(0, open), name.get(), frame.substr(plus));
}

std::string name_of(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/comm", thread));
  std::string name;
  std::getline(file, name);
  return name;
}

std::string calls_of(pid_t thread) {
  constexpr long kPatienceNs = 200'000'000;
  g_answer.asked = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, stack_signal()) != 0) return "  (has ended)\n";
  timespec until{};
  ::clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kPatienceNs;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  int waited = 0;
  while ((waited = ::sem_timedwait(&g_answer.there, &until)) != 0 && errno == EINTR) {
  }
  pid_t still = thread;
  if (waited != 0) {
    if (g_answer.asked.compare_exchange_strong(still, 0)) return "  (does not answer)\n";
    while (::sem_wait(&g_answer.there) != 0) {  // it has begun to
    }
  }
  const std::unique_ptr<char*, decltype(&std::free)> symbols(
      ::backtrace_symbols(g_answer.frames.data(), g_answer.count), &std::free);
  constexpr int kOfTheHandler = 2;
  std::string text;
  for (int i = kOfTheHandler; symbols && i < g_answer.count; ++i) {
    text += fmt::format("  #{} {}\n", i - kOfTheHandler, readable(symbols.get()[i]));
  }
  return text;
}

}  // namespace

std::string thread_stacks() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  std::string text;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    text += fmt::format("thread {} ({}):\n{}", thread, name_of(thread), calls_of(thread));
  }
  return text;
}

}  // namespace llmtrain
