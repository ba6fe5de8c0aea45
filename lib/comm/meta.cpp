// A group of any size that only records.
#include <algorithm>
#include <cstdlib>

#include "lib/comm/communicator.hpp"

namespace llmtrain {

namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(std::string name, int rank, int size, CollectiveRecorder* recorder)
      : Communicator(std::move(name), rank, size), recorder_(recorder) {}
  [[noreturn]] void abort(int code) override { std::_Exit(code); }

 protected:
  Handle do_all_reduce(const Tensor&, ReduceOp) override { return {}; }
  Handle do_all_gather(const Tensor&, const Tensor&) override { return {}; }
  Handle do_reduce_scatter(const Tensor&, const Tensor&) override { return {}; }
  Handle do_all_to_all(const Tensor&, const Tensor&) override { return {}; }
  Handle do_broadcast(const Tensor&, int) override { return {}; }
  Handle do_send(const Tensor&, int) override { return {}; }
  Handle do_recv(const Tensor&, int) override { return {}; }
  void do_barrier() override {}
  // The others are like this one.
  void do_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (auto part = all.begin(); part != all.end();) {
      part = std::copy(mine.begin(), mine.end(), part);
    }
  }
  std::uint64_t staging_bytes() const override { return size() > 1 ? kHostStagingBytes : 0; }
  void observe(const CollectiveRecord& record) override {
    if (recorder_ != nullptr) recorder_->record(record, size());
  }

 private:
  CollectiveRecorder* recorder_;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(std::string name, int rank, int size,
                                                     CollectiveRecorder* recorder) {
  return std::make_unique<MetaCommunicator>(std::move(name), rank, size, recorder);
}

}  // namespace llmtrain
