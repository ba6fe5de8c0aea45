// A group of any size that only records.
#include <algorithm>
#include <cstdlib>

#include "lib/comm/communicator.hpp"

namespace llmtrain {

namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(std::string name, std::vector<int> members, int index,
                   CollectiveRecorder* recorder, std::uint64_t staging_bytes)
      : Communicator(std::move(name), index, static_cast<int>(members.size())),
        members_(std::move(members)),
        recorder_(recorder),
        staging_bytes_(staging_bytes) {}
  std::uint64_t staging_bytes() const override { return size() > 1 ? staging_bytes_ : 0; }
  [[noreturn]] void abort(int code) override { std::_Exit(code); }

 protected:
  Handle do_all_reduce(const Tensor&, ReduceOp) override { return handle(); }
  Handle do_all_gather(const Tensor&, const Tensor&, std::span<const std::int64_t>) override {
    return handle();
  }
  Handle do_reduce_scatter(const Tensor&, const Tensor&, std::span<const std::int64_t>) override {
    return handle();
  }
  Handle do_all_to_all(const Tensor&, std::span<const std::int64_t>, const Tensor&,
                       std::span<const std::int64_t>) override {
    return handle();
  }
  Handle do_broadcast(const Tensor&, int) override { return handle(); }
  Handle do_send(const Tensor&, int) override { return handle(); }
  Handle do_recv(const Tensor&, int) override { return handle(); }
  void do_barrier() override { handle().wait(); }
  // The others are like this one.
  void do_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (auto part = all.begin(); part != all.end();) {
      part = std::copy(mine.begin(), mine.end(), part);
    }
    handle().wait();
  }
  void observe(const CollectiveRecord& record) override {
    if (recorder_ != nullptr) number_ = recorder_->started(record, members_);
  }

 private:
  class Pending final : public Handle::Pending {
   public:
    Pending(CollectiveRecorder& recorder, std::uint64_t number)
        : recorder_(&recorder), number_(number) {}
    void wait() override { recorder_->awaited(number_); }

   private:
    CollectiveRecorder* recorder_;
    std::uint64_t number_;
  };
  /// Of the call that was observed last.
  Handle handle() const {
    if (recorder_ == nullptr) return {};
    return Handle(std::make_unique<Pending>(*recorder_, number_));
  }

  std::vector<int> members_;
  CollectiveRecorder* recorder_;
  std::uint64_t staging_bytes_;
  std::uint64_t number_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(std::string name, std::vector<int> members,
                                                     int index, CollectiveRecorder* recorder,
                                                     std::uint64_t staging_bytes) {
  return std::make_unique<MetaCommunicator>(std::move(name), std::move(members), index, recorder,
                                            staging_bytes);
}

}  // namespace llmtrain
