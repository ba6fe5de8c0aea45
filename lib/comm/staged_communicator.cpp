#include "lib/comm/staged_communicator.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

// Of every collective the host has one piece at a time, on its way out in `pieces`, where others'
// pieces arrive too unless they are terms of a sum. Copies are done in order, so a piece may be
// brought while the one before is still on its way to the device; but what others send may land
// only when copies from there are done.
class StagedCommunicator final : public HostCollectives {
  using Call = CollectiveRecord;

 public:
  StagedCommunicator(std::string name, std::vector<int> members, int index, int id,
                     HostExchange& exchange, std::shared_ptr<PinnedStaging> staging)
      : HostCollectives(std::move(name), std::move(members), index, id, exchange),
        staging_(std::move(staging)),
        pieces_(staging_->pieces()) {
    set_terms(staging_->terms());
  }

 protected:
  Handle do_all_reduce(const Tensor& data, ReduceOp op) override {
    return submit_copies([this, all = bytes_of(data), dtype = data.dtype(), op](const Call& call) {
      const std::size_t bytes = part_bytes(terms(), dtype) * count();
      for (std::size_t at = 0; at < all.size(); at += bytes) {
        const Bytes data_piece = piece_of(all, at, bytes);
        const Bytes piece = pieces_.first(data_piece.size());
        bring(piece, data_piece);
        copies().finish();
        const std::vector<Bytes> parts = even_parts(piece, dtype);
        const Bytes mine = parts[static_cast<std::size_t>(rank())];
        add_up(call, parts, dtype, op, mine.data());
        exchange(call, [&](OpenMessages& messages) { gather(messages, mine, parts); });
        send_back(data_piece, piece);
      }
    });
  }

  Handle do_all_gather(const Tensor& in, const Tensor& out,
                       std::span<const std::int64_t> counts) override {
    return submit_copies(
        [this, from = bytes_of(in), parts = parts_of(bytes_of(out), counts, out.dtype()),
         dtype = out.dtype()](const Call& call) { gather_pieces(call, from, parts, dtype); });
  }

  Handle do_reduce_scatter(const Tensor& in, const Tensor& out,
                           std::span<const std::int64_t> counts) override {
    return submit_copies(
        [this, parts = parts_of(bytes_of(in), counts, in.dtype()), to = bytes_of(out),
         dtype = in.dtype()](const Call& call) { scatter_pieces(call, parts, to, dtype); });
  }

  Handle do_all_to_all(const Tensor& in, std::span<const std::int64_t> in_counts, const Tensor& out,
                       std::span<const std::int64_t> out_counts) override {
    return submit_copies([this, from = parts_of(bytes_of(in), in_counts, in.dtype()),
                          to = parts_of(bytes_of(out), out_counts, out.dtype()),
                          dtype = in.dtype()](const Call& call) {
      exchange_pieces(call, from, to, part_bytes(terms(), dtype));
    });
  }

  Handle do_broadcast(const Tensor& data, int root) override {
    return submit_copies([this, all = bytes_of(data), root](const Call& call) {
      for (std::size_t at = 0; at < all.size(); at += pieces_.size()) {
        const Bytes data_piece = piece_of(all, at, pieces_.size());
        const Bytes piece = pieces_.first(data_piece.size());
        if (rank() == root) bring(piece, data_piece);
        copies().finish();
        exchange(call, [&](OpenMessages& messages) { send_to_all(messages, piece, root); });
        if (rank() != root) send_back(data_piece, piece);
      }
    });
  }

  Handle do_send(const Tensor& data, int to) override {
    const Bytes all = bytes_of(data);
    const PinnedStaging::Room room = staging_->room(all.size());
    return submit_send(*room, to, [this, all, room, launched = copies().launched()] {
      copies().follow(*launched);
      bring(*room, all);
      copies().finish();
    });
  }

  Handle do_recv(const Tensor& data, int from) override {
    const Bytes all = bytes_of(data);
    const PinnedStaging::Room room = staging_->room(all.size());
    return submit_recv(*room, from, [this, all, room, launched = copies().launched()] {
      copies().follow(*launched);
      send_back(all, *room);
      copies().finish();
    });
  }

 private:
  CopyQueue& copies() const { return staging_->copies(); }
  void bring(Bytes piece, Bytes data) const {
    if (!data.empty()) copies().to_host(piece.data(), data.data(), data.size());
  }
  void send_back(Bytes data, Bytes piece) const {
    if (!data.empty()) copies().to_device(data.data(), piece.data(), data.size());
  }

  /// Addresses on the device.
  Bytes bytes_of(const Tensor& tensor) const {
    require(&tensor.device() == &staging_->device(), "a collective on another {} than the group's",
            to_string(tensor.device().kind()));
    return {tensor.view().as<std::byte>(), tensor.view().bytes()};
  }

  /// Queues a collective behind what was launched before; it is done when all its copies are.
  template <class Body>
  Handle submit_copies(Body body) {
    return submit_whole(
        [this, body = std::move(body), call = last_call(), launched = copies().launched()] {
          copies().follow(*launched);
          body(call);
          copies().finish();
        });
  }
  /// out = reduction of what every member gives as its part for this one.
  void add_up(const Call& call, std::span<const Bytes> parts, DType dtype, ReduceOp op,
              std::byte* out) const {
    exchange(call, [&](OpenMessages& messages) { send_terms(messages, parts, terms()); });
    add_terms(parts, terms(), dtype, op, out);
  }

  static std::size_t largest(std::span<const Bytes> parts) {
    std::size_t most = 0;
    for (const Bytes part : parts) most = std::max(most, part.size());
    return most;
  }
  static std::vector<Bytes> pieces_at(std::span<const Bytes> parts, std::size_t at,
                                      std::size_t bytes) {
    std::vector<Bytes> pieces;
    for (const Bytes part : parts) pieces.push_back(piece_of(part, at, bytes));
    return pieces;
  }
  /// Memory for each of the pieces, of `bytes` at most.
  static std::vector<Bytes> slots(Bytes memory, std::span<const Bytes> pieces, std::size_t bytes) {
    std::vector<Bytes> slots;
    for (std::size_t m = 0; m < pieces.size(); ++m) {
      slots.push_back(memory.subspan(m * bytes, pieces[m].size()));
    }
    return slots;
  }

  // As many pieces as the largest part has: who has got all of its own still sends to the others.
  void gather_pieces(const Call& call, Bytes from, std::span<const Bytes> parts,
                     DType dtype) const {
    const std::size_t bytes = part_bytes(terms(), dtype);
    const auto own = static_cast<std::size_t>(rank());
    const bool in_place = from.data() == parts[own].data();
    for (std::size_t at = 0; at < largest(parts); at += bytes) {
      const std::vector<Bytes> data = pieces_at(parts, at, bytes);
      const std::vector<Bytes> host = slots(pieces_, data, bytes);
      bring(host[own], piece_of(from, at, bytes));
      copies().finish();
      exchange(call, [&](OpenMessages& messages) { gather(messages, host[own], host); });
      for (std::size_t m = 0; m < count(); ++m) {
        if (m != own || !in_place) send_back(data[m], host[m]);
      }
    }
  }

  void scatter_pieces(const Call& call, std::span<const Bytes> parts, Bytes to, DType dtype) const {
    const std::size_t bytes = part_bytes(terms(), dtype);
    for (std::size_t at = 0; at < largest(parts); at += bytes) {
      const std::vector<Bytes> data = pieces_at(parts, at, bytes);
      const std::vector<Bytes> host = slots(pieces_, data, bytes);
      for (std::size_t m = 0; m < count(); ++m) bring(host[m], data[m]);
      copies().finish();
      const Bytes sum = host[static_cast<std::size_t>(rank())];
      add_up(call, host, dtype, ReduceOp::sum, sum.data());
      send_back(piece_of(to, at, bytes), sum);
    }
  }

  // Each pair knows how much it exchanges: whoever has more pieces for one member than for another
  // sends that one nothing in the end.
  void exchange_pieces(const Call& call, std::span<const Bytes> from, std::span<const Bytes> to,
                       std::size_t bytes) const {
    for (std::size_t at = 0; at < std::max(largest(from), largest(to)); at += bytes) {
      const std::vector<Bytes> sent = pieces_at(from, at, bytes), come = pieces_at(to, at, bytes);
      const std::vector<Bytes> host = slots(pieces_, sent, bytes);
      const std::vector<Bytes> theirs = slots(staging_->terms(), come, bytes);
      for (std::size_t m = 0; m < count(); ++m) bring(host[m], sent[m]);
      copies().finish();
      exchange(call, [&](OpenMessages& messages) { exchange_parts(messages, host, theirs); });
      for (std::size_t m = 0; m < count(); ++m) send_back(come[m], theirs[m]);
    }
  }

  std::shared_ptr<PinnedStaging> staging_;
  Bytes pieces_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::string name, std::vector<int> members,
                                                       int index, int id, HostExchange& exchange,
                                                       std::shared_ptr<PinnedStaging> staging) {
  return std::make_unique<StagedCommunicator>(std::move(name), std::move(members), index, id,
                                              exchange, std::move(staging));
}

}  // namespace llmtrain
