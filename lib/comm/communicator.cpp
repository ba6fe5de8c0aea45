#include "lib/comm/communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {
constexpr std::array<std::string_view, 8> kNames{"all_reduce", "all_gather", "reduce_scatter",
                                                 "all_to_all", "broadcast",  "send",
                                                 "recv",       "barrier"};

std::vector<std::int64_t> equal_parts(const Tensor& part, int members) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(members), part.numel());
}
}  // namespace

std::string_view to_string(Collective kind) { return kNames[static_cast<int>(kind)]; }

std::optional<Collective> parse_collective(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return Collective(found - kNames.begin());
}

std::string to_string(const CollectiveRecord& record) {
  return fmt::format("#{} {} on {}, {} B, at {}", record.sequence, to_string(record.kind),
                     record.group, record.bytes, record.site);
}

Communicator::Communicator(std::string name, int rank, int size)
    : name_(std::move(name)), rank_(rank), size_(size) {
  require(0 <= rank && rank < size, "group {}: rank {} of {}", name_, rank, size);
}

void Communicator::note(Collective kind, std::uint64_t bytes, std::string_view site, bool uneven) {
  observe({sequence_++, kind, name_, bytes, std::string(site), uneven});
}

void Communicator::note_parts(Collective kind, const Tensor& whole,
                              std::span<const std::int64_t> counts, std::string_view site) {
  CollectiveRecord record{sequence_++, kind, name_, whole.view().bytes(), std::string(site)};
  if (std::ranges::count(counts, counts.front()) != std::ssize(counts)) {
    record.own_elements = counts[static_cast<std::size_t>(rank_)];
    record.elements = whole.numel();
  }
  observe(record);
}

Handle Communicator::all_reduce(const Tensor& data, ReduceOp op, std::string_view site) {
  note(Collective::all_reduce, data.view().bytes(), site);
  return do_all_reduce(data, op);
}

Handle Communicator::all_gather(const Tensor& in, const Tensor& out, std::string_view site) {
  require(in.numel() * size_ == out.numel() && in.dtype() == out.dtype(),
          "{}: all_gather of {} elements into {} over {} ranks", site, in.numel(), out.numel(),
          size_);
  return all_gather_parts(in, out, equal_parts(in, size_), site);
}

Handle Communicator::reduce_scatter(const Tensor& in, const Tensor& out, std::string_view site) {
  require(out.numel() * size_ == in.numel() && in.dtype() == out.dtype(),
          "{}: reduce_scatter of {} elements into {} over {} ranks", site, in.numel(), out.numel(),
          size_);
  return reduce_scatter_parts(in, out, equal_parts(out, size_), site);
}

void Communicator::check_parts(Collective kind, const Tensor& part, const Tensor& whole,
                               std::span<const std::int64_t> counts, std::string_view site) const {
  require(std::ssize(counts) == size_ &&
              std::all_of(counts.begin(), counts.end(), [](std::int64_t n) { return n >= 0; }),
          "{}: {} with parts [{}] over {} ranks", site, to_string(kind), fmt::join(counts, ", "),
          size_);
  const auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  require(part.numel() == counts[static_cast<std::size_t>(rank_)] && whole.numel() == all &&
              part.dtype() == whole.dtype(),
          "{}: {} of parts [{}] with {} elements on rank {} and {} in all", site, to_string(kind),
          fmt::join(counts, ", "), part.numel(), rank_, whole.numel());
}

Handle Communicator::all_gather_parts(const Tensor& in, const Tensor& out,
                                      std::span<const std::int64_t> counts, std::string_view site) {
  check_parts(Collective::all_gather, in, out, counts, site);
  note_parts(Collective::all_gather, out, counts, site);
  return do_all_gather(in, out, counts);
}

Handle Communicator::reduce_scatter_parts(const Tensor& in, const Tensor& out,
                                          std::span<const std::int64_t> counts,
                                          std::string_view site) {
  check_parts(Collective::reduce_scatter, out, in, counts, site);
  note_parts(Collective::reduce_scatter, in, counts, site);
  return do_reduce_scatter(in, out, counts);
}

Handle Communicator::all_to_all(const Tensor& in, const Tensor& out, std::string_view site) {
  require(in.numel() == out.numel() && in.numel() % size_ == 0 && in.dtype() == out.dtype(),
          "{}: all_to_all of {} elements into {} over {} ranks", site, in.numel(), out.numel(),
          size_);
  note(Collective::all_to_all, in.view().bytes(), site);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), in.numel() / size_);
  return do_all_to_all(in, counts, out, counts);
}

Handle Communicator::all_to_all_parts(const Tensor& in, std::span<const std::int64_t> in_counts,
                                      const Tensor& out, std::span<const std::int64_t> out_counts,
                                      std::string_view site) {
  const auto fits = [&](const Tensor& tensor, std::span<const std::int64_t> counts) {
    return std::ssize(counts) == size_ && std::ranges::min(counts) >= 0 &&
           std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) <= tensor.numel();
  };
  require(fits(in, in_counts) && fits(out, out_counts) && in.dtype() == out.dtype(),
          "{}: all_to_all of parts [{}] of {} elements and [{}] of {} over {} ranks", site,
          fmt::join(in_counts, ", "), in.numel(), fmt::join(out_counts, ", "), out.numel(), size_);
  const auto all = std::accumulate(in_counts.begin(), in_counts.end(), std::int64_t{0});
  const auto others = all - in_counts[static_cast<std::size_t>(rank_)];
  uneven_bytes_sent_ += static_cast<std::uint64_t>(others) * size_of(in.dtype());
  note(Collective::all_to_all, static_cast<std::uint64_t>(all) * size_of(in.dtype()), site, true);
  return do_all_to_all(in, in_counts, out, out_counts);
}

Handle Communicator::broadcast(const Tensor& data, int root, std::string_view site) {
  require(0 <= root && root < size_, "{}: broadcast from {} of {} ranks", site, root, size_);
  note(Collective::broadcast, data.view().bytes(), site);
  return do_broadcast(data, root);
}

Handle Communicator::send(const Tensor& data, int to, std::string_view site) {
  require(0 <= to && to < size_ && to != rank_, "{}: send to {} of {} ranks", site, to, size_);
  note(Collective::send, data.view().bytes(), site);
  return do_send(data, to);
}

Handle Communicator::recv(const Tensor& data, int from, std::string_view site) {
  require(0 <= from && from < size_ && from != rank_, "{}: recv from {} of {} ranks", site, from,
          size_);
  note(Collective::recv, data.view().bytes(), site);
  return do_recv(data, from);
}

void Communicator::barrier(std::string_view site) {
  note(Collective::barrier, 0, site);
  do_barrier();
}

void Communicator::gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                                std::string_view site) {
  note(Collective::all_gather, all.size(), site);
  do_gather_bytes(mine, all);
}

std::vector<std::int64_t> Communicator::gather_numbers(std::span<const std::int64_t> mine,
                                                       std::string_view site) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(size_));
  gather_bytes(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), site);
  return all;
}

std::vector<std::string> Communicator::gather_texts(std::string_view mine, std::string_view site) {
  const std::vector<std::uint64_t> sizes = gather_values(std::uint64_t{mine.size()}, site);
  const auto longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::byte> padded(longest);
  std::memcpy(padded.data(), mine.data(), mine.size());
  std::vector<std::byte> all(longest * sizes.size());
  gather_bytes(padded, all, site);
  std::vector<std::string> texts;
  for (std::size_t m = 0; m < sizes.size(); ++m) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + m * longest, sizes[m]);
  }
  return texts;
}

std::string Communicator::share_text(std::string_view text, int root, std::string_view site) {
  return gather_texts(rank_ == root ? text : "", site)[static_cast<std::size_t>(root)];
}

}  // namespace llmtrain
