#include "lib/comm/tcp/watch.hpp"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::tcp {

namespace {

using std::chrono::seconds;

// A rank that waits for others says itself what happened, and how far it was. One that computes for
// longer than this ends without.
constexpr seconds kLastWords{5};
// From the end of one connection to the news about it on another.
constexpr seconds kNews{1};
// From the first rank that is done with everything to the last.
constexpr seconds kLeaving{60};

}  // namespace

Watch::Watch(int rank, std::vector<Socket> control, std::vector<std::string> names, End end)
    : rank_(rank),
      control_(std::move(control)),
      names_(std::move(names)),
      end_(std::move(end)),
      inputs_(control_.size()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      leaving_(names_.size(), false) {
  require<CommError>(wake_.is_open(), "the system gives no eventfd");
  thread_ = std::thread([this] { serve(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.fd(), &one, sizeof one);
  thread_.join();
}

void Watch::throw_problem() const {
  const std::lock_guard lock(mutex_);
  throw CommError(problem_);
}

void Watch::explain(int rank) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kNews, [this] { return !problem_.empty(); });
  const std::string text =
      problem_.empty() ? fmt::format("{} ended", names_[static_cast<std::size_t>(rank)]) : problem_;
  throw CommError(text);
}

void Watch::leave() {
  if (rank_ == 0) {
    note_leaving(0);
  } else {
    send(0, {.kind = Word::Kind::leaving, .rank = rank_});
  }
  std::unique_lock lock(mutex_);
  // All have come to the end of what they do. Whose machine fails after that tells nobody.
  changed_.wait_for(lock, kLeaving, [this] { return left_ || !problem_.empty(); });
  if (!left_ && !problem_.empty()) throw CommError(problem_);
}

void Watch::abort(int code) {
  const Word word{.kind = Word::Kind::abort, .code = code & 255, .rank = rank_};
  if (rank_ == 0) return send_to_all(word);
  send(0, word);
  // Rank 0 tells everybody, this rank too: a connection closed at once might swallow the word.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kNews, [this] { return stop_; });
}

void Watch::send(std::size_t peer, const Word& word) {
  const std::lock_guard lock(sending_);
  try {
    send_all(control_[peer], format_word(word), Clock::now() + kNews);
  } catch (const CommError&) {
    // It has ended, which the thread sees.
  }
}

void Watch::send_to_all(const Word& word) {
  for (std::size_t peer = 0; peer < control_.size(); ++peer) {
    if (control_[peer].is_open()) send(peer, word);
  }
}

void Watch::note_leaving(int rank) {
  {
    const std::lock_guard lock(mutex_);
    leaving_[static_cast<std::size_t>(rank)] = true;
    if (std::find(leaving_.begin(), leaving_.end(), false) != leaving_.end()) return;
    left_ = true;
  }
  send_to_all({.kind = Word::Kind::left, .rank = rank_});
  changed_.notify_all();
}

void Watch::lose(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (left_ || !problem_.empty()) return;
    problem_ = fmt::format("{} ended", names_[static_cast<std::size_t>(rank)]);
    failed_at_ = Clock::now();
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (rank_ == 0) send_to_all({.kind = Word::Kind::lost, .rank = rank});
}

void Watch::hear(std::size_t peer, const Word& word) {
  switch (word.kind) {
    case Word::Kind::abort:
      if (rank_ == 0) send_to_all(word);
      end_(word.code);
      return;
    case Word::Kind::lost:
      return lose(word.rank);
    case Word::Kind::leaving:
      return note_leaving(static_cast<int>(peer));
    case Word::Kind::left: {
      const std::lock_guard lock(mutex_);
      left_ = true;
      changed_.notify_all();
    }
  }
}

bool Watch::read(std::size_t peer) {
  Input& input = inputs_[peer];
  while (true) {
    const ssize_t n =
        ::recv(control_[peer].fd(), input.bytes.data() + input.got, kWordBytes - input.got, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    input.got += static_cast<std::size_t>(n);
    if (input.got < kWordBytes) continue;
    input.got = 0;
    hear(peer, parse_word(input.bytes, static_cast<int>(names_.size())));
  }
}

void Watch::serve() {
  while (true) {
    std::vector<pollfd> entries{{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    std::vector<std::size_t> peers;
    for (std::size_t peer = 0; peer < control_.size(); ++peer) {
      if (!control_[peer].is_open() || inputs_[peer].closed) continue;
      entries.push_back({.fd = control_[peer].fd(), .events = POLLIN, .revents = 0});
      peers.push_back(peer);
    }
    ::poll(entries.data(), entries.size(), failed_ ? 200 : -1);
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      if (!left_ && !problem_.empty() && Clock::now() - failed_at_ > kLastWords) {
        log::error("{}", problem_);
        end_(static_cast<int>(ExitCode::peer_lost));
        return;
      }
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      try {
        inputs_[peers[i]].closed = !read(peers[i]);
      } catch (const CommError& error) {
        log::error("{}: {}", names_[peers[i]], error.what());
        inputs_[peers[i]].closed = true;
      }
      if (inputs_[peers[i]].closed) lose(static_cast<int>(peers[i]));
    }
  }
}

}  // namespace llmtrain::tcp
