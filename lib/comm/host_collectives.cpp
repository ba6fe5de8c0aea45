#include "lib/comm/host_collectives.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lib/base/require.hpp"
#include "lib/comm/ordered_sum.hpp"

namespace llmtrain {

namespace {

/// A job's step that begins what there is, and then runs `after`.
ExchangeQueue::Step in_one_step(std::function<void(OpenMessages&)> begin,
                                std::function<void()> after = {}) {
  return [begin = std::move(begin), after = std::move(after),
          is_begun = false](OpenMessages& messages) mutable {
    if (!std::exchange(is_begun, true)) {
      begin(messages);
      return true;
    }
    if (after) after();
    return false;
  };
}

}  // namespace

HostCollectives::HostCollectives(std::string name, std::vector<int> members, int index, int id,
                                 HostExchange& exchange)
    : Communicator(std::move(name), index, static_cast<int>(members.size())),
      members_(std::move(members)),
      first_tag_(kTags * id),
      exchange_(&exchange) {}

void HostCollectives::abort(int code) {
  exchange_->transport->abort(code);
  std::_Exit(code);
}

Handle HostCollectives::submit_messages(std::function<void(OpenMessages&)> begin) {
  return exchange_->queue.submit({.call = call_, .step = in_one_step(std::move(begin))});
}

Handle HostCollectives::submit_lanes(std::vector<Step> steps) {
  std::vector<ExchangeQueue::Job> jobs;
  for (std::size_t lane = 0; lane < steps.size(); ++lane) {
    if (!steps[lane]) continue;
    jobs.push_back({.call = call_, .step = std::move(steps[lane]), .lane = static_cast<int>(lane)});
  }
  return exchange_->queue.submit(std::move(jobs));
}

HostCollectives::Bytes HostCollectives::lane_terms(int lane) const {
  const std::size_t bytes = terms_.size() / ExchangeQueue::kLanes;
  return terms_.subspan(static_cast<std::size_t>(lane) * bytes, bytes);
}

Handle HostCollectives::submit_whole(std::function<void()> body) {
  return exchange_->queue.submit({.call = call_, .step = [body = std::move(body)](OpenMessages&) {
                                    body();
                                    return false;
                                  }});
}

void HostCollectives::exchange(const CollectiveRecord& call,
                               const std::function<void(OpenMessages&)>& begin) const {
  constexpr TimeLimit kSlice{0.1};
  OpenMessages messages(*exchange_->transport);
  begin(messages);
  Waits& waits = exchange_->queue.waits();
  Vigil vigil(waits);
  for (TimeLimit waited{0}; !messages.wait(kSlice);) {
    waited += kSlice;
    const TimeLimit limit = exchange_->queue.patience();
    if (waited >= limit) waits.fail_unanswered(messages, limit, waited, call);
    vigil.look(messages, call);
  }
}

// Messages have a tag of their own: they may be under way while collectives go on.
Handle HostCollectives::submit_send(Bytes all, int to, std::function<void()> before) {
  return submit_messages([this, all, to, before = std::move(before)](OpenMessages& messages) {
    if (before) before();
    messages.send(world_rank(to), first_tag_ + 1, all);
  });
}

Handle HostCollectives::submit_recv(Bytes all, int from, std::function<void()> after) {
  const auto begin = [this, all, from](OpenMessages& messages) {
    messages.recv(world_rank(from), first_tag_ + 1, all);
  };
  return exchange_->queue.submit({.call = call_, .step = in_one_step(begin, std::move(after))});
}

void HostCollectives::do_barrier() {
  const std::byte mine{};
  std::vector<std::byte> all(count());
  do_gather_bytes({&mine, 1}, all);
}

void HostCollectives::do_gather_bytes(std::span<const std::byte> mine, Bytes all) {
  const std::vector<std::int64_t> counts(count(), static_cast<std::int64_t>(mine.size()));
  exchange_->queue.run({.call = call_, .step = in_one_step([&](OpenMessages& messages) {
                                         gather(messages, mine, parts_of(all, counts, DType::u8));
                                       })});
}

void HostCollectives::observe(const CollectiveRecord& record) {
  call_ = record;
  exchange_->log.note(record);
  const bool message = record.kind == Collective::send || record.kind == Collective::recv;
  if (exchange_->check && !message) compare_calls();
}

/// Texts of one length: whoever calls something else gathers as many bytes. Numbers are told and
/// not compared: they count messages, too, of which a stage between others has more.
void HostCollectives::compare_calls() {
  using Text = std::array<char, 256>;
  const auto without_number = [](const Text& text) {
    const std::string_view call = text.data();
    return call.substr(std::min(call.find(' '), call.size()));
  };
  std::vector<Text> all(count());
  Text mine{};
  CollectiveRecord comparable = call_;
  if (call_.uneven) comparable.bytes = 0;
  to_string(comparable).copy(mine.data(), mine.size() - 1);
  do_gather_bytes(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (int m = 0; m < size(); ++m) {
    const Text& theirs = all[static_cast<std::size_t>(m)];
    require<CommError>(without_number(theirs) == without_number(mine),
                       "the ranks of {} do not call the same: rank {} {}; rank {} {}", name(),
                       world_rank(rank()), mine.data(), world_rank(m), theirs.data());
  }
}

std::vector<HostCollectives::Bytes> HostCollectives::parts_of(Bytes all,
                                                              std::span<const std::int64_t> counts,
                                                              DType dtype) {
  std::vector<Bytes> parts;
  for (const std::int64_t n : counts) {
    const std::size_t bytes = static_cast<std::size_t>(n) * size_of(dtype);
    parts.push_back(all.first(bytes));
    all = all.subspan(bytes);
  }
  return parts;
}

std::vector<HostCollectives::Bytes> HostCollectives::even_parts(Bytes all, DType dtype) const {
  const std::int64_t elements = static_cast<std::int64_t>(all.size() / size_of(dtype));
  std::vector<std::int64_t> counts(count(), elements / size());
  for (std::int64_t m = 0; m < elements % size(); ++m) ++counts[static_cast<std::size_t>(m)];
  return parts_of(all, counts, dtype);
}

void HostCollectives::gather(OpenMessages& messages, std::span<const std::byte> mine,
                             std::span<const Bytes> parts, int lane) const {
  for (int m = 0; m < size(); ++m) {
    const Bytes part = parts[static_cast<std::size_t>(m)];
    if (m == rank()) continue;
    messages.recv(world_rank(m), tag(lane), part);
    messages.send(world_rank(m), tag(lane), mine);
  }
  // While the others' parts travel.
  const Bytes own = parts[static_cast<std::size_t>(rank())];
  if (!mine.empty() && own.data() != mine.data()) {
    std::memmove(own.data(), mine.data(), mine.size());
  }
}

void HostCollectives::exchange_parts(OpenMessages& messages, std::span<const Bytes> from,
                                     std::span<const Bytes> to) const {
  for (std::size_t m = 0; m < count(); ++m) {
    const int member = static_cast<int>(m);
    if (member != rank()) {
      messages.recv(world_rank(member), tag(kNoLane), to[m]);
      messages.send(world_rank(member), tag(kNoLane), from[m]);
    } else if (!to[m].empty()) {
      std::memcpy(to[m].data(), from[m].data(), to[m].size());
    }
  }
}

void HostCollectives::send_to_all(OpenMessages& messages, Bytes all, int root) const {
  if (rank() != root) messages.recv(world_rank(root), tag(kNoLane), all);
  for (int m = 0; rank() == root && m < size(); ++m) {
    if (m != root) messages.send(world_rank(m), tag(kNoLane), all);
  }
}

void HostCollectives::send_terms(OpenMessages& messages, std::span<const Bytes> parts, Bytes memory,
                                 int lane) const {
  const std::size_t bytes = parts[static_cast<std::size_t>(rank())].size();
  for (int m = 0; m < size(); ++m) {
    const auto at = static_cast<std::size_t>(m);
    if (m == rank()) continue;
    messages.recv(world_rank(m), tag(lane), memory.subspan(at * bytes, bytes));
    messages.send(world_rank(m), tag(lane), parts[at]);
  }
}

void HostCollectives::add_terms(std::span<const Bytes> parts, Bytes memory, DType dtype,
                                ReduceOp op, std::byte* out) const {
  const Bytes mine = parts[static_cast<std::size_t>(rank())];
  std::vector<const std::byte*> terms(count());
  for (std::size_t m = 0; m < count(); ++m) {
    const bool is_mine = static_cast<int>(m) == rank();
    terms[m] = is_mine ? mine.data() : memory.subspan(m * mine.size(), mine.size()).data();
  }
  reduce_in_order(terms, out, static_cast<std::int64_t>(mine.size() / size_of(dtype)), dtype, op);
}

std::size_t HostCollectives::part_bytes(Bytes memory, DType dtype) const {
  require(!memory.empty(), "a reduction over {} ranks of {} without staging", size(), name());
  const std::size_t element = size_of(dtype);
  const std::size_t elements = memory.size() / count() / element;
  require(elements > 0, "{} ranks of {} share {} B of staging", size(), name(), memory.size());
  return elements * element;
}

}  // namespace llmtrain
