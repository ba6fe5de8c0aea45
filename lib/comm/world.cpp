#include "lib/comm/world.hpp"

#include <cstdlib>
#include <interface_hash.h>  // generated: cmake/interface_hash.cmake

#include "lib/base/plugin.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/device_communicator.hpp"
#include "lib/comm/device_watch.hpp"
#include "lib/comm/host_communicator.hpp"
#include "lib/comm/pinned_staging.hpp"
#include "lib/comm/staged_communicator.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "lib/comm/tcp/tcp_transport.hpp"

namespace llmtrain {

namespace {

Transport& load_mpi(const Launch& launch) {
  const LoadedPlugin mpi = load_plugin("mpi", LLMTRAIN_INTERFACE_HASH);
  require<CommError>(mpi.interface != nullptr,
                     "process {} of {} of {} needs MPI to find the others, and its library does "
                     "not load ({}); build with MPI (docs/install.md), or start without it "
                     "(docs/parallelism.md)",
                     launch.place.rank, launch.place.size, launch.launcher, mpi.problem);
  return *static_cast<Transport*>(mpi.interface);
}

std::unique_ptr<Transport> connect_by_tcp(const Launch& launch) {
  auto transport = tcp::make_transport({.rank = launch.place.rank,
                                        .size = launch.place.size,
                                        .local_rank = launch.place.local_rank,
                                        .local_size = launch.place.local_size,
                                        .meeting = launch.meeting,
                                        .build = LLMTRAIN_INTERFACE_HASH,
                                        .host = tcp::host_name()});
  const JobPlace place = transport->place();
  if (launch.place.local_size == 0) set_local_place(place.local_rank, place.local_size);
  return transport;
}

}  // namespace

std::unique_ptr<World> World::join(const Launch& launch) {
  if (launch.place.size == 1) return std::unique_ptr<World>(new World());
  if (launch.connection == Connection::tcp) {
    auto transport = connect_by_tcp(launch);
    auto world = std::make_unique<World>(*transport);
    world->own_ = std::move(transport);
    return world;
  }
  auto world = std::make_unique<World>(load_mpi(launch));
  require<CommError>(world->place().size == launch.place.size,
                     "{} started {} processes, but MPI found {}: llmtrain was built with another "
                     "MPI than that of the launcher",
                     launch.launcher, launch.place.size, world->place().size);
  return world;
}

World::World() = default;

World::World(Transport& transport)
    : transport_(&transport),
      place_(transport.place()),
      exchange_(std::make_unique<HostExchange>(transport)) {}

World::~World() = default;

void World::configure(TimeLimit patience, bool check_collectives) {
  set_patience(patience);
  if (exchange_) exchange_->check = check_collectives;
}

void World::set_patience(TimeLimit patience) {
  patience_ = patience;
  if (exchange_ && exchange_->long_waits == 0) exchange_->queue.set_patience(patience);
}

Waits* World::waits() const { return exchange_ ? &exchange_->queue.waits() : nullptr; }

std::vector<CollectiveRecord> World::last_collectives() const {
  return exchange_ ? exchange_->log.last() : std::vector<CollectiveRecord>();
}

World::LongWait::LongWait(World& world) : world_(&world) {
  constexpr TimeLimit kForEver{1e9};
  if (!world.exchange_) return;
  ++world.exchange_->long_waits;
  world.exchange_->queue.set_patience(kForEver);
}

World::LongWait::~LongWait() {
  if (!world_->exchange_ || --world_->exchange_->long_waits > 0) return;
  world_->exchange_->queue.set_patience(world_->patience_);
}

std::unique_ptr<Communicator> World::make_group(std::string_view name,
                                                const std::vector<int>& members, int index,
                                                std::shared_ptr<PinnedStaging> staging) {
  const int id = groups_++;
  if (members.size() == 1) return make_self_communicator(std::string(name));
  require<RecipeError>(transport_ != nullptr,
                       "the layout needs {} ranks on {}, but this process runs alone",
                       members.size(), name);
  if (staging != nullptr) {
    return make_staged_communicator(std::string(name), members, index, id, *exchange_,
                                    std::move(staging));
  }
  return make_host_communicator(std::string(name), members, index, id, *exchange_);
}

std::unique_ptr<Communicator> World::make_device_group(std::string_view name,
                                                       const std::vector<int>& members, int index,
                                                       const Device& device,
                                                       std::shared_ptr<DeviceWatch> watch) {
  const int id = groups_++;
  if (members.size() == 1) return make_self_communicator(std::string(name));
  return make_device_communicator(std::string(name), members, index, id, *exchange_, device,
                                  std::move(watch));
}

std::shared_ptr<DeviceWatch> World::watch_devices(std::function<void(const std::string&)> give_up) {
  return std::make_shared<DeviceWatch>(exchange_->queue, std::move(give_up));
}

void World::leave() {
  if (transport_ == nullptr) return;
  exchange_.reset();
  transport_->leave();
}

void World::abort(int code) {
  if (transport_ != nullptr) transport_->abort(code);
  std::_Exit(code);
}

}  // namespace llmtrain
