#include "lib/comm/host_communicator.hpp"

#include <algorithm>
#include <vector>

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
    return submit_pieces(data.dtype(),
                         [this, all = bytes_of(data), dtype = data.dtype(), op](const Lane& lane) {
                           return all_reduce_pieces(lane, all, dtype, op);
                         });
  }

  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t> counts) override {
    return submit_messages(
        [this, from = bytes_of(in), parts = parts_of(bytes_of(out), counts, out.dtype())](
            OpenMessages& messages) { gather(messages, from, parts); });
  }

  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t> counts) override {
    return submit_pieces(in.dtype(), [this, parts = parts_of(bytes_of(in), counts, in.dtype()),
                                      to = bytes_of(out), dtype = in.dtype()](const Lane& lane) {
      return scatter_pieces(lane, parts, to, dtype);
    });
  }

  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts, const Tensor& out,
                       std::span<const std::int64_t> out_counts) override {
    return submit_messages([this, from = parts_of(bytes_of(in), in_counts, in.dtype()),
                            to = parts_of(bytes_of(out), out_counts, out.dtype())](
                               OpenMessages& messages) { exchange_parts(messages, from, to); });
  }

  Handle do_broadcast(const Tensor& data, int root) override {
    return submit_messages([this, all = bytes_of(data), root](OpenMessages& messages) {
      send_to_all(messages, all, root);
    });
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

  /// Lanes take a reduction's pieces in turn, beginning with another one at every call, so that
  /// small reductions go side by side, too.
  struct Lane {
    int number;
    std::size_t first_piece;
    Bytes memory;
    std::size_t part_bytes;  // of a piece
  };
  template <class MakeStep>
  Handle submit_pieces(DType dtype, const MakeStep& make_step) {
    std::vector<Step> steps;
    for (std::size_t lane = 0; lane < ExchangeQueue::kLanes; ++lane) {
      const int number = static_cast<int>(lane);
      const Bytes memory = lane_terms(number);
      steps.push_back(make_step(Lane{.number = number,
                                     .first_piece = (lane + reductions_) % ExchangeQueue::kLanes,
                                     .memory = memory,
                                     .part_bytes = part_bytes(memory, dtype)}));
    }
    ++reductions_;
    return submit_lanes(std::move(steps));
  }

  // A piece is cut into a part for each member, who adds it up and hands the sum around.
  Step all_reduce_pieces(const Lane& lane, Bytes all, DType dtype, ReduceOp op) const {
    const std::size_t bytes = lane.part_bytes * count();
    if (lane.first_piece * bytes >= all.size()) return {};
    return [this, lane, all, dtype, op, bytes, at = lane.first_piece * bytes,
            parts = std::vector<Bytes>()](OpenMessages& messages) mutable {
      if (!parts.empty()) {
        const Bytes mine = parts[static_cast<std::size_t>(rank())];
        add_terms(parts, lane.memory, dtype, op, mine.data());
        gather(messages, mine, parts, lane.number);
        parts.clear();
        return true;
      }
      if (at >= all.size()) return false;
      parts = even_parts(piece_of(all, at, bytes), dtype);
      send_terms(messages, parts, lane.memory, lane.number);
      at += bytes * ExchangeQueue::kLanes;
      return true;
    };
  }

  // As many pieces as the largest part has: who has got all of its own still sends to the others.
  Step scatter_pieces(const Lane& lane, const std::vector<Bytes>& parts, Bytes to,
                      DType dtype) const {
    std::size_t largest = 0;
    for (const Bytes part : parts) largest = std::max(largest, part.size());
    const std::size_t bytes = lane.part_bytes;
    if (lane.first_piece * bytes >= largest) return {};
    return [this, lane, parts, to, dtype, largest, bytes, at = lane.first_piece * bytes,
            pieces = std::vector<Bytes>()](OpenMessages& messages) mutable {
      if (!pieces.empty()) {
        const bool is_over = pieces[static_cast<std::size_t>(rank())].empty();
        add_terms(pieces, lane.memory, dtype, ReduceOp::sum, is_over ? nullptr : &to[at]);
        at += bytes * ExchangeQueue::kLanes;
        pieces.clear();
      }
      if (at >= largest) return false;
      for (const Bytes part : parts) pieces.push_back(piece_of(part, at, bytes));
      send_terms(messages, pieces, lane.memory, lane.number);
      return true;
    };
  }

  std::size_t reductions_ = 0;  // so far, as many on every member
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, HostExchange& exchange) {
  return std::make_unique<HostCommunicator>(std::move(name), std::move(members), index, id,
                                            exchange);
}

}  // namespace llmtrain
