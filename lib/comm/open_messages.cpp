#include "lib/comm/open_messages.hpp"

#include <algorithm>

namespace llmtrain {

namespace {

constexpr std::size_t kMessageBytes = std::size_t{1} << 22;

template <class Byte, class Visit>
void for_each_piece(std::span<Byte> all, const Visit& visit) {
  for (std::size_t at = 0; at < all.size(); at += kMessageBytes) {
    visit(all.subspan(at, std::min(kMessageBytes, all.size() - at)));
  }
}

}  // namespace

void OpenMessages::send(int rank, int tag, std::span<const std::byte> data) {
  for_each_piece(data, [&](std::span<const std::byte> piece) {
    open_.push_back({transport_->send(rank, tag, piece), rank});
  });
}

void OpenMessages::recv(int rank, int tag, std::span<std::byte> data) {
  for_each_piece(data, [&](std::span<std::byte> piece) {
    open_.push_back({transport_->recv(rank, tag, piece), rank});
  });
}

// All must be done in the end, so one that is not is as good as all.
bool OpenMessages::are_done() {
  while (!open_.empty() && transport_->is_done(open_.back().ticket)) open_.pop_back();
  return open_.empty();
}

bool OpenMessages::wait(TimeLimit limit) {
  std::vector<Transport::Ticket> tickets;
  for (const Message& message : open_) tickets.push_back(message.ticket);
  std::vector<Message> left;
  for (const std::size_t i : transport_->wait(tickets, limit)) left.push_back(open_[i]);
  open_ = std::move(left);
  return open_.empty();
}

std::set<int> OpenMessages::peers() {
  std::erase_if(open_, [&](const Message& message) { return transport_->is_done(message.ticket); });
  std::set<int> ranks;
  for (const Message& message : open_) ranks.insert(message.rank);
  return ranks;
}

}  // namespace llmtrain
