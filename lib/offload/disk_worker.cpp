#include "lib/offload/disk_worker.hpp"

#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::offload {

DiskWorker::DiskWorker(ScratchFile file, const StoreOptions& options, const char* waits,
                       Duties duties)
    : file_(std::move(file)),
      requests_(file_, options.make_queue(file_.descriptor(), BlockRequests::kDepth)),
      waits_(waits),
      duties_(std::move(duties)),
      thread_([this] { serve(); }) {}

DiskWorker::~DiskWorker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    requests_.wake();
  }
  thread_.join();
}

std::uint64_t DiskWorker::grow(std::uint64_t least, std::uint64_t wanted) {
  try {
    return file_.grow(least, wanted);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

StoreTraffic DiskWorker::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

std::string DiskWorker::how() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("by {}, {} the page cache", requests_.queue_name(),
                     file_.bypasses_cache() ? "past" : "through");
}

void DiskWorker::fail_changed(std::uint64_t begin, std::uint64_t end, std::string_view what) const {
  fail<StorageError>(
      "{}: bytes {} to {} are not what was written there: the disk, or the way to it, has "
      "changed {}",
      file_.name(), begin, end, what);
}

void DiskWorker::serve() {
  for (;;) {
    Lock lock(mutex_, std::defer_lock);
    try {
      const DiskCompletion completion = requests_.wait();
      lock.lock();
      const auto finished = requests_.complete(completion);
      if (finished) duties_.finish(*finished, lock);
      if (!failure_ && !ending_) {
        duties_.begin(lock);
        requests_.submit();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (!failure_) failure_ = std::current_exception();
    }
    changed_.notify_all();
    if (ending_ && requests_.none_under_way()) return;
  }
}

}  // namespace llmtrain::offload
