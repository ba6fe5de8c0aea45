#include "lib/comm/host_communicator.hpp"

#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

namespace {

class HostCommunicator final : public HostCollectives {
 public:
  using HostCollectives::HostCollectives;

  std::uint64_t staging_bytes() const override { return size() > 1 ? kHostStagingBytes : 0; }
  void use_staging(const Tensor& staging) override {
    require(staging.view().bytes() >= staging_bytes(), "{} B of staging", staging.view().bytes());
    set_terms(bytes_of(staging));
  }

 protected:
  Handle do_all_reduce(const Tensor& data, ReduceOp op) override {
    return submit([this, all = bytes_of(data), dtype = data.dtype(), op](const Call& call) {
      reduce_pieces(call, all, dtype, op);
    });
  }

  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t> counts) override {
    return submit([this, from = bytes_of(in), parts = parts_of(bytes_of(out), counts, out.dtype())](
                      const Call& call) { gather(call, from, parts); });
  }

  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t> counts) override {
    return submit(
        [this, parts = parts_of(bytes_of(in), counts, in.dtype()), to = bytes_of(out),
         dtype = in.dtype()](const Call& call) { scatter_pieces(call, parts, to, dtype); });
  }

  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts, const Tensor& out,
                       std::span<const std::int64_t> out_counts) override {
    return submit([this, from = parts_of(bytes_of(in), in_counts, in.dtype()),
                   to = parts_of(bytes_of(out), out_counts, out.dtype())](const Call& call) {
      exchange_parts(call, from, to);
    });
  }

  Handle do_broadcast(const Tensor& data, int root) override {
    return submit(
        [this, all = bytes_of(data), root](const Call& call) { send_to_all(call, all, root); });
  }

  Handle do_send(const Tensor& data, int to) override { return submit_send(bytes_of(data), to); }
  Handle do_recv(const Tensor& data, int from) override {
    return submit_recv(bytes_of(data), from);
  }

 private:
  static Bytes bytes_of(const Tensor& tensor) {
    const View& view = tensor.view();
    require(tensor.device().kind() == DeviceKind::cpu, "a collective on the {} in host memory",
            to_string(tensor.device().kind()));
    return {view.as<std::byte>(), view.bytes()};
  }

  // As many pieces as the largest part has: who has got all of its own still sends to the others.
  void scatter_pieces(const Call& call, std::span<const Bytes> parts, Bytes to, DType dtype) const {
    const std::size_t piece_bytes = part_bytes(dtype);
    std::size_t largest = 0;
    for (const Bytes part : parts) largest = std::max(largest, part.size());
    for (std::size_t at = 0; at < largest; at += piece_bytes) {
      std::vector<Bytes> pieces;
      for (const Bytes part : parts) pieces.push_back(piece_of(part, at, piece_bytes));
      const bool is_over = pieces[static_cast<std::size_t>(rank())].empty();
      add_up(call, pieces, dtype, ReduceOp::sum, is_over ? nullptr : &to[at]);
    }
  }
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, HostExchange& exchange) {
  return std::make_unique<HostCommunicator>(std::move(name), std::move(members), index, id,
                                            exchange);
}

}  // namespace llmtrain
