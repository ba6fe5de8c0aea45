#pragma once
/// A job whose processes are threads of this one, which hand their messages over in memory, or by
/// TCP where LLMTRAIN_TEST_TRANSPORT is "tcp".

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "lib/comm/transport.hpp"
#include "tests/support/tcp_job.hpp"

namespace llmtrain::testing {

/// What threads send each other; counts what each of them sent.
class MailRoom {
 public:
  explicit MailRoom(int size) : sent_bytes(static_cast<std::size_t>(size)) {}
  using Key = std::tuple<int, int, int>;  // from, to, tag

  void put(const Key& key, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex_);
    boxes_[key].emplace_back(data.begin(), data.end());
    sent_bytes[static_cast<std::size_t>(std::get<0>(key))] += data.size();
    arrived_.notify_all();
  }
  /// The oldest message; false when there is none within the limit.
  bool take(const Key& key, std::span<std::byte> to, TimeLimit limit) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[key];
    if (!arrived_.wait_for(lock, limit, [&] { return !box.empty(); })) return false;
    if (box.front().size() != to.size()) throw std::runtime_error("a message of another size");
    std::copy(box.front().begin(), box.front().end(), to.begin());
    box.pop_front();
    return true;
  }

  std::vector<std::uint64_t> sent_bytes;

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, std::deque<std::vector<std::byte>>> boxes_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(MailRoom& room, int rank, int size) : room_(&room) {
    place_ = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  }
  std::string_view name() const override { return "threads"; }
  JobPlace place() const override { return place_; }
  Ticket send(int to, int tag, std::span<const std::byte> data) override {
    room_->put({place_.rank, to, tag}, data);
    open_.push_back(std::nullopt);
    return static_cast<Ticket>(open_.size() - 1);
  }
  Ticket recv(int from, int tag, std::span<std::byte> data) override {
    open_.push_back(Expected{{from, place_.rank, tag}, data});
    return static_cast<Ticket>(open_.size() - 1);
  }
  bool is_done(Ticket ticket) override { return finish(ticket, TimeLimit(0)); }
  std::vector<std::size_t> wait(std::span<const Ticket> tickets, TimeLimit limit) override {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      if (!finish(tickets[i], std::min(limit, TimeLimit(30)))) open.push_back(i);
    }
    return open;
  }
  void rest(int) override { std::this_thread::yield(); }
  void leave() override {}
  [[noreturn]] void abort(int) override { std::terminate(); }

 private:
  struct Expected {
    MailRoom::Key key;
    std::span<std::byte> data;
  };
  // Messages of one key are taken in the order in which they are expected.
  bool finish(Ticket ticket, TimeLimit limit) {
    for (Ticket before = 0; before <= ticket; ++before) {
      auto& expected = open_[before];
      if (!expected || (before != ticket && expected->key != key_of(ticket))) continue;
      if (!room_->take(expected->key, expected->data, limit)) return false;
      expected.reset();
    }
    return true;
  }
  MailRoom::Key key_of(Ticket ticket) const {
    return open_[ticket] ? open_[ticket]->key : MailRoom::Key{-1, -1, -1};
  }

  MailRoom* room_;
  JobPlace place_;
  std::vector<std::optional<Expected>> open_;
};

/// Counts what another one sends.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(Transport& counted) : counted_(&counted) {}
  std::string_view name() const override { return counted_->name(); }
  JobPlace place() const override { return counted_->place(); }
  Ticket send(int to, int tag, std::span<const std::byte> data) override {
    sent_bytes += data.size();
    return counted_->send(to, tag, data);
  }
  Ticket recv(int from, int tag, std::span<std::byte> data) override {
    return counted_->recv(from, tag, data);
  }
  bool is_done(Ticket ticket) override { return counted_->is_done(ticket); }
  std::vector<std::size_t> wait(std::span<const Ticket> tickets, TimeLimit limit) override {
    return counted_->wait(tickets, std::min(limit, TimeLimit(30)));
  }
  void rest(int looks) override { counted_->rest(looks); }
  void leave() override { counted_->leave(); }
  [[noreturn]] void abort(int) override { std::terminate(); }

  std::uint64_t sent_bytes = 0;

 private:
  Transport* counted_;
};

/// Runs `body(transport)` as each rank of a job of `size`; rethrows what the first of them threw.
/// Returns the bytes that each has sent.
inline std::vector<std::uint64_t> run_job(int size, const std::function<void(Transport&)>& body) {
  const char* kind = std::getenv("LLMTRAIN_TEST_TRANSPORT");
  if (kind != nullptr && std::string_view(kind) == "tcp") {
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(size));
    run_tcp_job(size, [&](Transport& transport) {
      CountingTransport counting(transport);
      body(counting);
      sent[static_cast<std::size_t>(transport.place().rank)] = counting.sent_bytes;
    });
    return sent;
  }
  MailRoom room(size);
  in_threads(size, [&](int rank) {
    ThreadTransport transport(room, rank, size);
    body(transport);
  });
  return room.sent_bytes;
}

}  // namespace llmtrain::testing
