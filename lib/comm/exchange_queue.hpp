#pragma once
/// The one order in which a process does its communication.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/comm/open_messages.hpp"
#include "lib/comm/transport.hpp"
#include "lib/comm/waits.hpp"

namespace llmtrain {

/// Jobs begin one after another, in the order of their submission over all groups of the process,
/// and then go on side by side: nobody waits for the messages of one before the next one begins. A
/// thread of its own looks after them while the step computes; whoever waits for a job lends a hand
/// instead of sleeping. After a job that failed all others fail with its error: the ranks no longer
/// stand at one place.
class ExchangeQueue {
 public:
  /// Of the jobs in a lane, each of which needs the lane's memory, one is under way at a time.
  static constexpr int kLanes = 2;

  /// Begins the next messages of a job, when those before are done; false when it has none left and
  /// is over. One that waits for others itself is over at once: nothing else goes on meanwhile.
  using Step = std::function<bool(OpenMessages&)>;
  struct Job {
    CollectiveRecord call;
    Step step;
    std::optional<int> lane = {};
  };

  explicit ExchangeQueue(Transport& transport);
  /// Waits for nothing: all handles are gone.
  ~ExchangeQueue();
  ExchangeQueue(const ExchangeQueue&) = delete;
  ExchangeQueue& operator=(const ExchangeQueue&) = delete;

  /// How long ranks may take to answer: to a collective from when it asks on, to a message, whose
  /// other end may be late with good reason, from when somebody waits for it.
  void set_patience(TimeLimit patience) { patience_ = patience.count(); }
  TimeLimit patience() const { return TimeLimit(patience_); }
  Waits& waits() { return waits_; }

  /// The handle is done when all of the jobs are.
  Handle submit(std::vector<Job> jobs);
  Handle submit(Job job);
  /// The same, and waits; no other thread is woken.
  void run(Job job);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Entry(Job of, Transport& transport) : job(std::move(of)), messages(transport) {}
    Job job;
    OpenMessages messages;
    Clock::time_point asked;
    std::exception_ptr error;
    std::atomic<bool> done{false};
  };
  using Shared = std::shared_ptr<Entry>;
  class Waiter;
  Shared enqueue(Job job);
  void finish(Entry& entry);
  // `driving_` is held in what follows.
  /// Begins a job and takes those under way further; whether anything went on.
  bool drive();
  void begin(const Shared& entry);
  /// Whether it is over.
  bool advance(Entry& entry, bool& went_on);
  void complete(Entry& entry);
  /// What has to end before this one goes on, or itself.
  Entry& first_of_lane(Entry& entry);

  void serve();

  Transport* transport_;
  std::atomic<double> patience_{kDefaultPatience.count()};
  Waits waits_;
  std::atomic<int> waiters_{0};
  std::mutex driving_;  // guards the transport and what follows
  std::list<Shared> under_way_;
  std::array<std::deque<Shared>, kLanes> lanes_;  // the first one is under way
  std::exception_ptr failure_;                    // the first one
  std::mutex waiting_;                            // guards what follows
  std::condition_variable wake_;
  std::deque<Shared> jobs_;
  bool anything_under_way_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace llmtrain
