// A group of any size that only records.
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
