#pragma once
/// The one order in which a process does its communication.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain {

inline constexpr TimeLimit kDefaultPatience{600};

/// Jobs begin one after another, in the order of their submission over all groups of the process.
/// A thread of its own begins them while the step computes; whoever waits for a job lends a hand
/// instead of sleeping. A job is a collective, which is done when its function returns, or a
/// message, whose function only begins it, so that jobs behind it go on. After a job that failed
/// all others fail with its error: the ranks no longer stand at one place.
class ExchangeQueue {
 public:
  explicit ExchangeQueue(Transport& transport);
  /// Waits for nothing: all handles are gone.
  ~ExchangeQueue();
  ExchangeQueue(const ExchangeQueue&) = delete;
  ExchangeQueue& operator=(const ExchangeQueue&) = delete;

  /// How long whoever waits does so before it throws CommError.
  void set_patience(TimeLimit patience) { patience_ = patience.count(); }
  TimeLimit patience() const { return TimeLimit(patience_); }

  /// Returns what is still under way: a message, whose other end `what` names in errors.
  using Work = std::function<std::vector<Transport::Ticket>(Transport&)>;
  /// `then` runs, once, when all of it has arrived, before the handle is done.
  Handle submit(Work work, std::string what = "", std::function<void()> then = {});
  /// The same for a collective, done when it returns; no other thread is woken.
  void run(Work work);

 private:
  struct Job {
    Work work;
    std::string what;
    std::function<void()> then;
    std::vector<Transport::Ticket> tickets;
    std::exception_ptr error;
    std::atomic<bool> done{false};
  };
  class Waiter;
  std::shared_ptr<Job> enqueue(Work work, std::string what, std::function<void()> then = {});
  void finish(Job& job);
  /// Nothing of the job is under way any more. `driving_` is held.
  void complete(Job& job);
  /// Whose other end does not come.
  [[noreturn]] void give_up(const Job& job);
  /// Begins the next job, if there is one, and looks after messages. `driving_` is held.
  void drive();
  void serve();

  Transport* transport_;
  std::atomic<double> patience_{kDefaultPatience.count()};
  std::mutex driving_;                         // guards the transport and under_way_
  std::list<std::shared_ptr<Job>> under_way_;  // messages
  std::exception_ptr failure_;                 // the first one; guarded by driving_
  std::mutex waiting_;                         // guards what follows
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool messages_ = false;  // under_way_ is not empty
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace llmtrain
