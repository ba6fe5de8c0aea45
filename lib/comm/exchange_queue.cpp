#include "lib/comm/exchange_queue.hpp"

#include <chrono>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain {

// How often messages are looked after that nobody waits for.
constexpr std::chrono::microseconds kPause{100};

class ExchangeQueue::Waiter final : public Handle::Pending {
 public:
  Waiter(ExchangeQueue& queue, std::shared_ptr<Job> job) : queue_(&queue), job_(std::move(job)) {}
  void wait() override { queue_->finish(*job_); }

 private:
  ExchangeQueue* queue_;
  std::shared_ptr<Job> job_;
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

std::shared_ptr<ExchangeQueue::Job> ExchangeQueue::enqueue(Work work, std::string what,
                                                           std::function<void()> then) {
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  job->what = std::move(what);
  job->then = std::move(then);
  const std::lock_guard lock(waiting_);
  jobs_.push_back(job);
  return job;
}

Handle ExchangeQueue::submit(Work work, std::string what, std::function<void()> then) {
  auto job = enqueue(std::move(work), std::move(what), std::move(then));
  wake_.notify_one();
  return Handle(std::make_unique<Waiter>(*this, std::move(job)));
}

void ExchangeQueue::run(Work work) { finish(*enqueue(std::move(work), "")); }

void ExchangeQueue::finish(Job& job) {
  const trace::Scope span(trace::Kind::wait,
                          [&] { return job.what.empty() ? std::string("collectives") : job.what; });
  const auto begin = std::chrono::steady_clock::now();
  // Collectives have a limit of their own, in which they know who is missing.
  const auto too_late = [&] {
    return !job.what.empty() && std::chrono::steady_clock::now() - begin > patience();
  };
  while (!job.done) {
    {
      const std::lock_guard lock(driving_);
      if (!job.done) drive();
    }
    if (job.done) break;
    if (too_late()) give_up(job);
    activity::tick();
    std::this_thread::yield();
  }
  if (job.error) std::rethrow_exception(job.error);
}

void ExchangeQueue::give_up(const Job& job) {
  const std::lock_guard lock(driving_);
  if (!failure_) {
    failure_ = std::make_exception_ptr(
        CommError(fmt::format("no answer within {:g} s: {}", patience().count(), job.what)));
  }
  std::rethrow_exception(failure_);
}

void ExchangeQueue::complete(Job& job) {
  try {
    if (!failure_ && job.then) job.then();
  } catch (...) {
    failure_ = std::current_exception();
  }
  job.error = failure_;
  // What they hold may be gone when whoever waits goes on.
  job.work = nullptr;
  job.then = nullptr;
  job.done = true;
}

void ExchangeQueue::drive() {
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(waiting_);
    if (!jobs_.empty()) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
  }
  if (job) {
    try {
      if (!failure_) job->tickets = job->work(*transport_);
    } catch (...) {
      failure_ = std::current_exception();
    }
    if (job->tickets.empty()) {
      complete(*job);
    } else {
      under_way_.push_back(std::move(job));
    }
  }
  std::erase_if(under_way_, [&](const std::shared_ptr<Job>& message) {
    try {
      if (!failure_) {
        std::erase_if(message->tickets,
                      [&](Transport::Ticket t) { return transport_->is_done(t); });
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    if (failure_) message->tickets.clear();
    if (!message->tickets.empty()) return false;
    complete(*message);
    return true;
  });
  const std::lock_guard lock(waiting_);
  messages_ = !under_way_.empty();
  if (messages_) wake_.notify_one();
}

void ExchangeQueue::serve() {
  std::unique_lock lock(waiting_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || messages_ || !jobs_.empty(); });
    if (jobs_.empty()) {  // messages need a look now and then
      wake_.wait_for(lock, kPause, [this] { return stop_ || !jobs_.empty(); });
    }
    if (stop_) return;
    lock.unlock();
    {
      const std::lock_guard driver(driving_);
      drive();
    }
    lock.lock();
  }
}

}  // namespace llmtrain
