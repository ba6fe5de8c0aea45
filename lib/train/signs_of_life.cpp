#include "lib/train/signs_of_life.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/directory.hpp"
#include "lib/base/log.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

// Of this start of this rank, and of no other one.
std::string token() {
  return fmt::format("{} {} {}", plan::machine_facts().host, ::getpid(),
                     std::chrono::system_clock::now().time_since_epoch().count());
}

}  // namespace

SignsOfLife::SignsOfLife(const Peers& peers, const std::filesystem::path& directory)
    : directory_(directory / "logs"),
      rank_(peers.world().place().rank),
      next_((rank_ + 1) % peers.world().place().size),
      own_token_(token()) {
  create_directories_durably(directory_);
  give();
  // All have given one when all have heard of it.
  next_token_ = peers.texts_of_all(own_token_, "signs of life")[static_cast<std::size_t>(next_)];
  last_ = sign_of_next();
  is_heard_ = !last_.empty();
  if (!is_heard_) {
    log::note(
        fmt::format("{} does not show what rank {} writes there: if that rank stands still "
                    "before the first step or in a save, it is not missed",
                    file_of(next_).string(), next_));
  }
}

std::filesystem::path SignsOfLife::file_of(int rank) const {
  return directory_ / fmt::format("rank-{}.alive", rank);
}

// Opened anew each time: only then do network file systems look at what others have written.
void SignsOfLife::give() {
  const std::string text = fmt::format("{:020} {}\n", ++signs_, own_token_);
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

std::string SignsOfLife::sign_of_next() const {
  const int file = ::open(file_of(next_).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string text(256, '\0');
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  return text.find(" " + next_token_ + "\n") == std::string::npos ? "" : text;
}

bool SignsOfLife::heard() {
  if (!is_heard_) return true;
  std::string now = sign_of_next();
  if (now == last_) return false;
  last_ = std::move(now);
  return true;
}

}  // namespace llmtrain::train
