#include "lib/checkpoint/handover.hpp"

#include <algorithm>
#include <chrono>
#include <exception>

#include "lib/base/stop_request.hpp"

namespace llmtrain::checkpoint {

namespace {

// How long a signal may go unheard by who waits for the disk.
constexpr std::chrono::milliseconds kListen{100};

}  // namespace

bool Handover::expect(std::vector<Want> wants) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || wants.empty()) {
    close_locked();
    is_expected_ = true;
    return false;
  }
  for (Want& want : wants) {
    FileWants& of_file = files_[want.file];
    of_file.end = std::max(of_file.end, want.end);
    of_file.wants.push_back(std::move(want));
  }
  for (auto& [name, file] : files_) std::ranges::sort(file.wants, {}, &Want::begin);
  is_expected_ = true;
  changed_.notify_all();
  return true;
}

void Handover::serve(const std::function<bool()>& idle) {
  bool may_be_idle = true;
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      if (!tasks_.empty()) {
        take_next(lock);
        continue;
      }
      if (is_closed_ || has_ended_) return;
      lock.unlock();
      // Asking is no sign of life: a check that gets nowhere must be seen.
      if (is_asked_to_stop()) stop_if_asked("loading a checkpoint");
      may_be_idle = may_be_idle && idle();
      lock.lock();
      const auto is_due = [&] { return !tasks_.empty() || is_closed_ || has_ended_; };
      if (!may_be_idle) changed_.wait_for(lock, kListen, is_due);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    close_locked();
    throw;
  }
}

void Handover::take_next(std::unique_lock<std::mutex>& lock) {
  const Task task = tasks_.front();
  tasks_.pop_front();
  ++taking_;
  lock.unlock();
  std::exception_ptr failed;
  try {
    task.want->take(task.offset, task.bytes);
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  if (--taking_ == 0 && tasks_.empty()) changed_.notify_all();
  if (failed) std::rethrow_exception(failed);
}

void Handover::close() {
  const std::lock_guard lock(mutex_);
  close_locked();
}

void Handover::close_locked() {
  is_closed_ = true;
  has_lost_ = has_lost_ || (!has_ended_ && !files_.empty());
  tasks_.clear();
  changed_.notify_all();
}

void Handover::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

bool Handover::is_complete() const {
  const std::lock_guard lock(mutex_);
  return is_expected_ && !has_lost_ && std::ranges::all_of(files_, [](const auto& named) {
           return named.second.offered >= named.second.end;
         });
}

void Handover::offer(const std::string& file, std::uint64_t begin,
                     std::span<const std::byte> piece) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_expected_ || is_closed_; });
  const auto found = files_.find(file);
  if (is_closed_ || found == files_.end()) return;
  FileWants& of_file = found->second;
  const std::vector<Want>& wants = of_file.wants;
  if (begin == 0) of_file.first = 0;
  while (of_file.first < wants.size() && wants[of_file.first].end <= begin) ++of_file.first;
  const std::uint64_t end = begin + piece.size();
  try {
    for (std::size_t i = of_file.first; i < wants.size() && wants[i].begin < end; ++i) {
      const std::uint64_t from = std::max(begin, wants[i].begin), to = std::min(end, wants[i].end);
      if (from >= to) continue;
      tasks_.push_back({&wants[i], from - wants[i].begin, piece.subspan(from - begin, to - from)});
    }
  } catch (...) {  // nobody may look at the piece when this has thrown
    tasks_.clear();
    throw;
  }
  of_file.offered = end;  // less than before where the file is read again
  changed_.notify_all();
}

void Handover::finish_offer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() && taking_ == 0; });
}

Handover::Offer::Offer(Handover* handover, std::string_view file, std::uint64_t begin,
                       std::span<const std::byte> piece)
    : handover_(handover) {
  if (handover_ != nullptr) handover_->offer(std::string(file), begin, piece);
}

Handover::Offer::~Offer() {
  if (handover_ != nullptr) handover_->finish_offer();
}

}  // namespace llmtrain::checkpoint
