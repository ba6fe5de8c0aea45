#pragma once
/// A job whose processes are threads of this one.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "lib/comm/transport.hpp"

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

/// Runs `body(transport)` as each rank of a job of `size`; rethrows what the first of them threw.
inline std::vector<std::uint64_t> run_job(int size, const std::function<void(Transport&)>& body) {
  MailRoom room(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadTransport transport(room, rank, size);
        body(transport);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return room.sent_bytes;
}

}  // namespace llmtrain::testing
