#include "lib/plan/collective_bench.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "lib/plan/rated_samples.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::array kKinds{Collective::all_reduce,     Collective::all_gather,
                            Collective::reduce_scatter, Collective::all_to_all,
                            Collective::broadcast,      Collective::send,
                            Collective::recv,           Collective::barrier};
constexpr std::string_view kSite = "measuring";
constexpr std::int64_t kBufferBytes = std::int64_t{128} << 20;

class Bench {
 public:
  Bench(Communicator& group, Device& device)
      : group_(&group),
        in_(buffer(device)),
        out_(buffer(device)),
        staging_(device.allocate({static_cast<std::int64_t>(group.staging_bytes())}, DType::u8,
                                 Category::comm, "staging")) {
    group.use_staging(staging_);
  }

  double seconds(Collective kind, std::int64_t bytes) {
    constexpr std::int64_t kBytesPerPoint = 64 << 20;
    const std::int64_t repetitions = std::clamp<std::int64_t>(kBytesPerPoint / bytes, 5, 60);
    std::vector<double> times;
    for (std::int64_t r = 0; r <= repetitions; ++r) {
      group_->barrier(kSite);
      const auto begin = std::chrono::steady_clock::now();
      call(kind, elements_of(bytes));
      at_ += elements_of(bytes);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      if (r > 0) times.push_back(spent.count());  // the first one warms up
    }
    return quantile(times, 0.5);
  }
  /// As a call of about so many bytes has them: parts for all members.
  std::int64_t elements_of(std::int64_t bytes) const {
    return std::max<std::int64_t>(1, bytes / kElement / group_->size()) * group_->size();
  }
  static constexpr std::int64_t kElement = sizeof(float);

 private:
  Tensor buffer(Device& device) const {
    Tensor data = device.allocate({kBufferBytes / kElement, 1}, DType::f32, Category::workspace,
                                  "measured data");
    const std::vector<std::byte> zeros(data.view().bytes());
    device.copy_from_host(data, zeros);
    return data;
  }

  void call(Collective kind, std::int64_t elements) {
    if (at_ + elements > in_.numel()) at_ = 0;
    const Tensor in = in_.row_range(at_, elements), out = out_.row_range(at_, elements);
    const Tensor part = out_.row_range(at_, elements / group_->size());
    switch (kind) {
      case Collective::all_reduce:
        return group_->all_reduce(in, ReduceOp::sum, kSite).wait();
      case Collective::all_gather:
        return group_->all_gather(part, in, kSite).wait();
      case Collective::reduce_scatter:
        return group_->reduce_scatter(in, part, kSite).wait();
      case Collective::all_to_all:
        return group_->all_to_all(in, out, kSite).wait();
      case Collective::broadcast:
        return group_->broadcast(in, 0, kSite).wait();
      case Collective::send:
      case Collective::recv:
        return exchange(in);
      case Collective::barrier:
        return group_->barrier(kSite);
    }
  }

  // A message is there when its receiver has it: both ends of a pair take that time.
  void exchange(const Tensor& data) {
    const int mate = group_->rank() ^ 1;
    if (mate >= group_->size()) return;
    if (group_->rank() < mate) {
      group_->send(data, mate, kSite).wait();
    } else {
      group_->recv(data, mate, kSite).wait();
    }
    Tensor answer = out_.row_range(0, 1);
    if (group_->rank() < mate) {
      group_->recv(answer, mate, kSite).wait();
    } else {
      group_->send(answer, mate, kSite).wait();
    }
  }

  Communicator* group_;
  Tensor in_, out_, staging_;
  std::int64_t at_ = 0;  // each call has other data, which no cache holds
};

}  // namespace

std::map<Collective, KernelModel> measure_collectives(Communicator& group, Device& device,
                                                      bool quick) {
  std::map<Collective, KernelModel> models;
  if (group.size() == 1) return models;
  const std::int64_t largest = std::int64_t{quick ? 16 : 64} << 20;
  Bench bench(group, device);
  for (const Collective kind : kKinds) {
    KernelModel::Axis bytes;
    std::vector<double> seconds;
    for (std::int64_t b = 256; b <= largest; b *= 4) {
      bytes.push_back(static_cast<double>(bench.elements_of(b) * Bench::kElement));
      seconds.push_back(bench.seconds(kind, b));
    }
    models.emplace(kind, KernelModel({bytes}, bytes, seconds));
  }
  return models;
}

}  // namespace llmtrain::plan
