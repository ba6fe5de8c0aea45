#pragma once
/// The processes of this job, connected.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/activity.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain {

class Device;
class DeviceWatch;
class PinnedStaging;
class Waits;
struct HostExchange;

class World {
 public:
  /// Connects this process to the others of its launch; to do once, by all of them. A process that
  /// was started by itself is a world of one and loads nothing. CommError when the library that
  /// connects them cannot be had or found other processes than the launcher said, or when they do
  /// not find each other.
  static std::unique_ptr<World> join(const Launch& launch);
  /// For tests: over a transport that outlives it.
  explicit World(Transport& transport);
  /// Ends nothing: see leave().
  ~World();

  const JobPlace& place() const { return place_; }
  /// How long one member of a group waits for another.
  TimeLimit patience() const { return patience_; }
  /// For all groups: how long one member waits for another, and whether they compare what they call
  /// (HostExchange::check). Before the first collective, alike on all ranks.
  void configure(TimeLimit patience, bool check_collectives);
  /// The former alone, between collectives.
  void set_patience(TimeLimit patience);
  /// For whom this process waits, and what it knows of others; null in a world of one. Until
  /// leave().
  Waits* waits() const;
  /// What the groups of this process called last, oldest first.
  std::vector<CollectiveRecord> last_collectives() const;

  /// While it lives, whoever waits for another rank waits without limit: one of them does what may
  /// take hours.
  class LongWait {
   public:
    explicit LongWait(World& world);
    ~LongWait();
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;

   private:
    World* world_;
    activity::EndlessWait wait_;
  };

  /// "mpi", "tcp", or "self" for a world of one.
  std::string_view kind() const { return transport_ == nullptr ? "self" : transport_->name(); }

  /// Collective over the members, which are ranks of this world; all processes make their groups in
  /// one order, and those that are made at the same time by different processes have no members in
  /// common or all. Its tensors are the CPU's, or those of the device that has the staging.
  std::unique_ptr<Communicator> make_group(std::string_view name, const std::vector<int>& members,
                                           int index,
                                           std::shared_ptr<PinnedStaging> staging = nullptr);
  /// The same for tensors of a device that a library connects with the others'.
  std::unique_ptr<Communicator> make_device_group(std::string_view name,
                                                  const std::vector<int>& members, int index,
                                                  const Device& device,
                                                  std::shared_ptr<DeviceWatch> watch);
  /// For such groups of this process; there are others than this one.
  std::shared_ptr<DeviceWatch> watch_devices(std::function<void(const std::string&)> give_up);
  /// Collective; when all is done. Without it the end of a process ends the others.
  void leave();
  /// Ends all processes at once.
  [[noreturn]] void abort(int code);

 private:
  World();

  std::unique_ptr<Transport> own_;  // where no library has it
  Transport* transport_ = nullptr;
  JobPlace place_;
  TimeLimit patience_ = kDefaultPatience;
  std::unique_ptr<HostExchange> exchange_;
  int groups_ = 0;
};

}  // namespace llmtrain
