#include "lib/comm/exchange_queue.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/activity.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain {

namespace {

// How long nobody looks after jobs that nobody waits for, twice as long after each look in vain. A
// thread that slept comes before one that computes; one that only gave way would not.
constexpr std::chrono::microseconds kPause{100}, kLongPause{1000};

class Waiting {
 public:
  explicit Waiting(std::atomic<int>& count) : count_(&count) { ++*count_; }
  ~Waiting() { --*count_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>* count_;
};

bool is_message(const CollectiveRecord& call) {
  return call.kind == Collective::send || call.kind == Collective::recv;
}

}  // namespace

class ExchangeQueue::Waiter final : public Handle::Pending {
 public:
  explicit Waiter(ExchangeQueue& queue) : queue_(&queue) {}
  void add(Shared entry) { entries_.push_back(std::move(entry)); }
  void wait() override {
    for (const Shared& entry : entries_) queue_->finish(*entry);
  }

 private:
  ExchangeQueue* queue_;
  std::vector<Shared> entries_;
};

ExchangeQueue::ExchangeQueue(Transport& transport)
    : transport_(&transport), thread_([this] { serve(); }) {}

ExchangeQueue::~ExchangeQueue() {
  {
    const std::lock_guard lock(waiting_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

ExchangeQueue::Shared ExchangeQueue::enqueue(Job job) {
  auto entry = std::make_shared<Entry>(std::move(job), *transport_);
  const std::lock_guard lock(waiting_);
  jobs_.push_back(entry);
  return entry;
}

Handle ExchangeQueue::submit(std::vector<Job> jobs) {
  auto waiter = std::make_unique<Waiter>(*this);
  for (Job& job : jobs) waiter->add(enqueue(std::move(job)));
  wake_.notify_one();
  return Handle(std::move(waiter));
}

Handle ExchangeQueue::submit(Job job) {
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return submit(std::move(jobs));
}

void ExchangeQueue::run(Job job) { finish(*enqueue(std::move(job))); }

void ExchangeQueue::finish(Entry& entry) {
  const trace::Scope span(trace::Kind::wait, [&] { return to_string(entry.job.call); });
  const Clock::time_point begin = Clock::now();
  const Waiting waiting(waiters_);
  Vigil vigil(waits_);
  for (int looks = 0; !entry.done;) {
    const std::lock_guard lock(driving_);
    if (entry.done) break;
    if (drive()) {
      looks = 0;
      continue;
    }
    if (is_message(entry.job.call) && !failure_ && waited_longer(begin, patience())) {
      try {
        waits_.fail_unanswered(entry.messages, patience(), waited_since(begin), entry.job.call);
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
    Entry& first = first_of_lane(entry);
    vigil.look(first.messages, first.job.call);
    activity::tick();
    transport_->rest(looks++);
  }
  if (entry.error) std::rethrow_exception(entry.error);
}

ExchangeQueue::Entry& ExchangeQueue::first_of_lane(Entry& entry) {
  if (!entry.job.lane) return entry;
  const auto& lane = lanes_[static_cast<std::size_t>(*entry.job.lane)];
  return lane.empty() ? entry : *lane.front();
}

void ExchangeQueue::complete(Entry& entry) {
  entry.error = failure_;
  entry.messages.forget();
  // What it holds may be gone when whoever waits goes on.
  entry.job.step = nullptr;
  entry.done = true;
}

bool ExchangeQueue::advance(Entry& entry, bool& went_on) {
  try {
    while (!failure_ && entry.messages.are_done()) {
      went_on = true;
      const trace::Scope span(trace::Kind::communication,
                              [&] { return to_string(entry.job.call); });
      if (!entry.job.step(entry.messages)) {
        complete(entry);
        return true;
      }
      entry.asked = Clock::now();
    }
    if (!failure_ && !is_message(entry.job.call) && waited_longer(entry.asked, patience())) {
      waits_.fail_unanswered(entry.messages, patience(), waited_since(entry.asked), entry.job.call);
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
  if (!failure_) return false;
  went_on = true;
  complete(entry);
  return true;
}

void ExchangeQueue::begin(const Shared& entry) {
  if (entry->job.lane) {
    auto& lane = lanes_[static_cast<std::size_t>(*entry->job.lane)];
    lane.push_back(entry);
    if (lane.size() > 1) return;
  }
  under_way_.push_back(entry);
}

bool ExchangeQueue::drive() {
  bool went_on = false;
  Shared next;
  {
    const std::lock_guard lock(waiting_);
    if (!jobs_.empty()) {
      next = std::move(jobs_.front());
      jobs_.pop_front();
    }
  }
  if (next) begin(next);
  for (auto at = under_way_.begin(); at != under_way_.end();) {
    const Shared entry = *at;
    if (!advance(*entry, went_on)) {
      ++at;
      continue;
    }
    if (entry->job.lane) {
      auto& lane = lanes_[static_cast<std::size_t>(*entry->job.lane)];
      lane.pop_front();
      if (!lane.empty()) under_way_.push_back(lane.front());
    }
    at = under_way_.erase(at);
  }
  const std::lock_guard lock(waiting_);
  // Whoever drives may leave when its own job is done.
  if (!std::exchange(anything_under_way_, !under_way_.empty()) && anything_under_way_) {
    wake_.notify_one();
  }
  return went_on || next != nullptr;
}

void ExchangeQueue::serve() {
  std::chrono::microseconds pause{0};
  std::unique_lock lock(waiting_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || anything_under_way_ || !jobs_.empty(); });
    // Who waits does what there is to do.
    wake_.wait_for(lock, waiters_ > 0 ? kLongPause : pause,
                   [this] { return stop_ || (waiters_ == 0 && !jobs_.empty()); });
    if (stop_) return;
    if (waiters_ > 0) continue;
    lock.unlock();
    {
      const std::lock_guard driver(driving_);
      pause = drive() ? std::chrono::microseconds(0) : std::clamp(2 * pause, kPause, kLongPause);
    }
    lock.lock();
  }
}

}  // namespace llmtrain
