// The group of one rank.
#include <algorithm>
#include <cstdlib>

#include "lib/base/require.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

namespace {

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::string name) : Communicator(std::move(name), 0, 1) {}
  [[noreturn]] void abort(int code) override { std::_Exit(code); }

 protected:
  Handle do_all_reduce(const Tensor&, ReduceOp) override { return {}; }
  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t>) override {
    return copy(in, out);
  }
  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t>) override {
    return copy(in, out);
  }
  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> counts, const Tensor& out,
                       std::span<const std::int64_t>) override {
    const auto part = [&](const Tensor& of) {
      return of.reshape({of.numel()}).columns(0, counts.front());
    };
    return copy(part(in), part(out));
  }
  Handle do_broadcast(const Tensor&, int) override { return {}; }
  Handle do_send(const Tensor&, int) override { fail("send within a group of one"); }
  Handle do_recv(const Tensor&, int) override { fail("recv within a group of one"); }
  void do_barrier() override {}
  void do_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::copy(mine.begin(), mine.end(), all.begin());
  }

 private:
  static Handle copy(const Tensor& in, const Tensor& out) {
    if (in.view().data != out.view().data) out.device().copy(in, out);
    return {};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(std::string name) {
  return std::make_unique<SelfCommunicator>(std::move(name));
}

}  // namespace llmtrain
