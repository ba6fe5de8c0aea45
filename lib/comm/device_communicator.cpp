#include "lib/comm/device_communicator.hpp"

#include <map>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

class JoinedCall final : public Handle::Pending {
 public:
  explicit JoinedCall(DeviceGroup::Queued call) : call_(std::move(call)) {}
  void wait() override { call_->join(); }

 private:
  DeviceGroup::Queued call_;
};

// Libraries do calls of one group in order, so messages of two directions would wait for each
// other: each direction between neighbours is a group of two.
class DeviceCommunicator final : public HostCollectives {
 public:
  DeviceCommunicator(std::string name, std::vector<int> members, int index, int id,
                     HostExchange& exchange, const Device& device,
                     std::shared_ptr<DeviceWatch> watch)
      : HostCollectives(std::move(name), members, index, id, exchange),
        members_(std::move(members)),
        device_(&device),
        watch_(std::move(watch)) {
    std::vector<int> all(members_.size());
    std::iota(all.begin(), all.end(), 0);
    group_ = join(all);
  }

  void open_channels() override {
    for (int from = 0; from < size(); ++from) {
      for (const int step : {1, size() - 1}) {
        const int to = (from + step) % size();
        if (channels_.contains({from, to})) continue;
        channels_[{from, to}] = join({from, to});
      }
    }
  }

 protected:
  Handle do_all_reduce(const Tensor& data, ReduceOp op) override {
    return handle(group_, group_->all_reduce(address(data), data.numel(), data.dtype(), op));
  }
  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t> counts) override {
    return handle(group_, group_->all_gather(address(in), address(out), counts, out.dtype()));
  }
  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t> counts) override {
    return handle(group_, group_->reduce_scatter(address(in), address(out), counts, in.dtype()));
  }
  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts, const Tensor& out,
                       std::span<const std::int64_t> out_counts) override {
    return handle(group_,
                  group_->all_to_all(address(in), in_counts, address(out), out_counts, in.dtype()));
  }
  Handle do_broadcast(const Tensor& data, int root) override {
    return handle(group_, group_->broadcast(address(data), data.numel(), data.dtype(), root));
  }
  Handle do_send(const Tensor& data, int to) override {
    const Group& channel = channel_between(rank(), to);
    return handle(channel, channel->send(address(data), data.numel(), data.dtype(), 1));
  }
  Handle do_recv(const Tensor& data, int from) override {
    const Group& channel = channel_between(from, rank());
    return handle(channel, channel->recv(address(data), data.numel(), data.dtype(), 0));
  }

 private:
  using Group = std::shared_ptr<DeviceGroup>;

  /// Collective over all members; null on those that are not among `some`.
  Group join(const std::vector<int>& some) {
    DeviceGroupId id{};
    if (rank() == some.front()) id = device_->backend().new_group_id();
    id = gather_values(id, "group of devices")[static_cast<std::size_t>(some.front())];
    const auto self = std::find(some.begin(), some.end(), rank());
    if (self == some.end()) return nullptr;
    return device_->backend().join_group(id, static_cast<int>(self - some.begin()),
                                         static_cast<int>(some.size()));
  }

  const Group& channel_between(int from, int to) const {
    const auto found = channels_.find({from, to});
    require(found != channels_.end(), "{}: no channel was opened from member {} to {}", name(),
            from, to);
    return found->second;
  }

  void* address(const Tensor& tensor) const {
    require(&tensor.device() == device_, "a collective on another {} than the group's",
            to_string(tensor.device().kind()));
    return tensor.view().data;
  }

  Handle handle(const Group& group, DeviceGroup::Queued call) {
    watch_->add(call, group,
                fmt::format("ranks {}: {}", fmt::join(members_, ", "), to_string(last_call())));
    return Handle(std::make_unique<JoinedCall>(std::move(call)));
  }

  std::vector<int> members_;
  const Device* device_;
  std::shared_ptr<DeviceWatch> watch_;
  Group group_;
  std::map<std::pair<int, int>, Group> channels_;  // from one member to another
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(std::string name, std::vector<int> members,
                                                       int index, int id, HostExchange& exchange,
                                                       const Device& device,
                                                       std::shared_ptr<DeviceWatch> watch) {
  return std::make_unique<DeviceCommunicator>(std::move(name), std::move(members), index, id,
                                              exchange, device, std::move(watch));
}

}  // namespace llmtrain
