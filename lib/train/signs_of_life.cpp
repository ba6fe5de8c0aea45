#include "lib/train/signs_of_life.hpp"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/directory.hpp"
#include "lib/base/log.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

constexpr int kNobody = -1;
constexpr std::size_t kDigits = 20;  // of a sign's number, behind which stands for whom it waits
// What gives no sign for so long stands still: signs come every second at least.
constexpr std::chrono::milliseconds kStale{2500};

// Of this start of this rank, and of no other one.
std::string token() {
  return fmt::format("{} {} {}", plan::machine_facts().host, ::getpid(),
                     std::chrono::system_clock::now().time_since_epoch().count());
}

}  // namespace

SignsOfLife::SignsOfLife(const Peers& peers, const std::filesystem::path& directory)
    : directory_(directory / "logs"),
      waits_(peers.world().waits()),
      rank_(peers.world().place().rank),
      next_((rank_ + 1) % peers.world().place().size),
      tokens_(static_cast<std::size_t>(peers.world().place().size), token()) {
  create_directories_durably(directory_);
  give();
  // All have given one when all have heard of it.
  tokens_ = peers.texts_of_all(tokens_.front(), "signs of life");
  if (waits_ != nullptr) waits_->know([this](int rank) { return wait_of(rank); });
  last_ = sign_of(next_);
  is_heard_ = !last_.empty();
  if (!is_heard_) {
    log::note(
        fmt::format("{} does not show what rank {} writes there: if that rank stands still "
                    "before the first step or in a save, it is not missed",
                    file_of(next_).string(), next_));
  }
}

SignsOfLife::~SignsOfLife() {
  if (waits_ != nullptr) waits_->know({});
}

std::filesystem::path SignsOfLife::file_of(int rank) const {
  return directory_ / fmt::format("rank-{}.alive", rank);
}

// Opened anew each time: only then do network file systems look at what others have written.
void SignsOfLife::give() {
  const std::optional<int> wait = waits_ != nullptr ? waits_->own() : std::nullopt;
  const std::string text = fmt::format("{:020} {:>8} {}\n", ++signs_, wait ? *wait : kNobody,
                                       tokens_[static_cast<std::size_t>(rank_)]);
  const int file = ::open(file_of(rank_).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  const int problem = errno;
  if (file >= 0) ::close(file);
  if (written || told_) return;
  told_ = true;
  log::warning(
      "{}: {}; if this rank stands still before the first step or in a save, it is not missed",
      file_of(rank_).string(), std::strerror(problem));
}

std::string SignsOfLife::sign_of(int rank) const {
  const int file = ::open(file_of(rank).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string text(256, '\0');
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  const std::string& token = tokens_[static_cast<std::size_t>(rank)];
  return text.find(" " + token + "\n") == std::string::npos ? "" : text;
}

void SignsOfLife::look_at_others() {
  std::vector<int> asked;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(others_, [now = Clock::now()](const auto& other) {
      return now - other.second.asked > kStale;
    });
    for (const auto& [rank, sign] : others_) asked.push_back(rank);
  }
  for (const int rank : asked) {
    std::string text = sign_of(rank);  // without the lock: a disk may stand still
    const std::lock_guard lock(mutex_);
    const auto at = others_.find(rank);
    if (at == others_.end() || at->second.text == text) continue;
    at->second.text = std::move(text);
    at->second.changed = Clock::now();
  }
}

std::optional<int> SignsOfLife::wait_of(int rank) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = others_.try_emplace(rank, Sign{.changed = now});
  Sign& sign = at->second;
  sign.asked = now;
  // A process that gives no signs any more waits for nobody.
  if (now - sign.changed > kStale) return std::nullopt;
  if (!sign.text) return Waits::kNotKnownYet;
  const int wait = sign.text->empty() ? kNobody : std::atoi(sign.text->c_str() + kDigits);
  return wait == kNobody ? std::nullopt : std::optional(wait);
}

bool SignsOfLife::heard() {
  if (!is_heard_) return true;
  std::string now = sign_of(next_);
  if (now == last_) return false;
  last_ = std::move(now);
  return true;
}

}  // namespace llmtrain::train
