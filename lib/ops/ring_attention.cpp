#include "lib/ops/ring_attention.hpp"

#include <array>
#include <utility>

#include "kernels/elementwise.hpp"
#include "lib/mesh/mesh.hpp"

namespace llmtrain::ops {

namespace {

constexpr std::string_view kSite = "ring attention";

/// `data` on its way to the next rank, and what arrives from the one before.
struct Exchange {
  Handle sent, arrived;
  void wait() {
    sent.wait();
    arrived.wait();
  }
};

Exchange pass_on(const OpCtx& ctx, const Tensor& data, const Tensor& coming) {
  Communicator& ring = ctx.mesh->row_sharers();
  const int n = ring.size();
  Exchange exchange;
  exchange.sent = ring.send(data, (ring.rank() + 1) % n, kSite);
  exchange.arrived = ring.recv(coming, (ring.rank() + n - 1) % n, kSite);
  return exchange;
}

/// Keys and values side by side, or their gradients.
struct Pair {
  Tensor both, k, v;
  Pair(const OpCtx& ctx, const View& like, DType dtype, std::string_view tag)
      : both(ctx.allocate({like.rows(), 2 * like.cols()}, dtype, tag)),
        k(both.columns(0, like.cols())),
        v(both.columns(like.cols(), like.cols())) {}
};

/// Calls visit(step, positions, k, v) with the keys and values of every rank, the own ones first,
/// while they are passed on.
template <class Visit>
void go_around(const OpCtx& ctx, const View& k, const View& v, const Visit& visit) {
  const Communicator& ring = ctx.mesh->row_sharers();
  const int n = ring.size(), rank = ring.rank();
  Pair here(ctx, k, k.dtype, "k and v of one sp rank");
  Pair coming(ctx, k, k.dtype, "k and v of the next one");
  ctx.launch(kernels::ScaleCast{.x = k, .y = here.k});
  ctx.launch(kernels::ScaleCast{.x = v, .y = here.v});
  for (int step = 0; step < n; ++step) {
    Exchange exchange;
    if (step + 1 < n) exchange = pass_on(ctx, here.both, coming.both);
    const std::int64_t owner = (rank + n - step) % n, rows = k.rows();
    visit(step, ctx.rows->all_position.columns(owner * rows, rows), here);
    exchange.wait();
    std::swap(here, coming);
  }
}

/// Room for sums, undefined where `target` has their type and takes them itself.
Tensor sums_of(const OpCtx& ctx, const View& target, DType sums, std::string_view tag) {
  if (target.dtype == sums) return {};
  return ctx.allocate({target.rows(), target.cols()}, sums, tag);
}

void add(const OpCtx& ctx, const View& terms, const View& to) {
  ctx.launch(kernels::ScaleCast{.x = terms, .y = to, .accumulate = true});
}

}  // namespace

void ring_attention(const OpCtx& ctx, const kernels::AttentionForward& own) {
  const DType dtype = statistics_dtype(own.q.dtype);
  const Tensor sum = sums_of(ctx, own.out, dtype, "attention in parts");
  const View out = sum.defined() ? sum.view() : own.out;
  const Tensor part = ctx.allocate({out.rows(), out.cols()}, dtype, "attention to one sp rank");
  const Tensor part_lse = ctx.allocate(own.lse.shape, dtype, "lse of one sp rank");
  go_around(ctx, own.k, own.v, [&](int step, const View& positions, const Pair& keys) {
    kernels::AttentionForward block = own;
    block.shape.k_position = positions;
    block.k = keys.k;
    block.v = keys.v;
    block.out = step == 0 ? out : part.view();
    if (step == 0) return ctx.launch(block);
    block.shape.sink = {};  // counted with the own keys
    block.lse = part_lse;
    ctx.launch(block);
    ctx.launch(kernels::AttentionMerge{.num_sequences = own.shape.num_sequences,
                                       .num_heads = own.shape.num_heads,
                                       .part_out = part,
                                       .part_lse = part_lse,
                                       .out = out,
                                       .lse = own.lse});
  });
  if (sum.defined()) ctx.launch(kernels::ScaleCast{.x = sum, .y = own.out});
}

void ring_attention_backward(const OpCtx& ctx, const kernels::AttentionBackward& own) {
  const DType dtype = statistics_dtype(own.q.dtype);
  const Tensor dq_sum = sums_of(ctx, own.dq, dtype, "gradient of q in parts");
  const View dq = dq_sum.defined() ? dq_sum.view() : own.dq;
  const Tensor dq_part = ctx.allocate({dq.rows(), dq.cols()}, dtype, "gradient of q by one rank");
  const Pair home(ctx, own.k, dtype, "gradient of own k and v");
  // One is computed while the other is on its way to the next rank.
  const std::array<Pair, 2> terms{Pair(ctx, own.k, dtype, "gradient of another rank's k and v"),
                                  Pair(ctx, own.k, dtype, "gradient of another rank's k and v")};
  const Pair arrived(ctx, own.k, dtype, "gradient of k and v so far");
  Exchange exchange;
  go_around(ctx, own.k, own.v, [&](int step, const View& positions, const Pair& keys) {
    const Pair& here = step == 0 ? home : terms[static_cast<std::size_t>(step % 2)];
    kernels::AttentionBackward block = own;
    block.shape.k_position = positions;
    block.k = keys.k;
    block.v = keys.v;
    block.dq = step == 0 ? dq : dq_part.view();
    block.dk = here.k;
    block.dv = here.v;
    if (step > 0) block.shape.sink = block.dsink = {};  // counted with the own keys
    ctx.launch(block);
    if (step == 0) return;
    add(ctx, dq_part, dq);
    exchange.wait();
    if (step > 1) add(ctx, arrived.both, here.both);
    exchange = pass_on(ctx, here.both, arrived.both);
  });
  exchange.wait();
  add(ctx, arrived.both, home.both);
  ctx.launch(kernels::ScaleCast{.x = home.k, .y = own.dk});
  ctx.launch(kernels::ScaleCast{.x = home.v, .y = own.dv});
  if (dq_sum.defined()) ctx.launch(kernels::ScaleCast{.x = dq_sum, .y = own.dq});
}

}  // namespace llmtrain::ops
