// Messages over TCP, between threads that are the ranks of a job.
#include <atomic>
#include <chrono>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "tests/support/tcp_job.hpp"

using namespace llmtrain;
using testing::run_tcp_job;

namespace {

using Bytes = std::vector<std::byte>;
using Ticket = Transport::Ticket;

constexpr TimeLimit kLong{30};

/// What differs in every place of every message.
Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 97) % 256);
  }
  return bytes;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void finish(Transport& t, const std::vector<Ticket>& tickets) {
  expect(t.wait(tickets, kLong).empty(), "did not finish");
}

/// Until the other side has read what was sent before.
void meet(Transport& t, int other) {
  std::byte mine{}, theirs{};
  finish(t, {t.send(other, 32'767, {&mine, 1}), t.recv(other, 32'767, {&theirs, 1})});
}

}  // namespace

TEST_CASE("messages of one tag arrive in their order, of any size") {
  const std::vector<std::size_t> sizes{0, 1, 15, 16, 17, 4096, 0, 100'003, 3, 5'000'000, 7};
  run_tcp_job(2, [&](Transport& t) {
    expect(t.name() == "tcp", "name");
    const int other = 1 - t.place().rank;
    std::vector<Bytes> sent, got;
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent.push_back(pattern(sizes[i], static_cast<int>(i) + t.place().rank * 100));
      got.emplace_back(sizes[i]);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      tickets.push_back(t.send(other, 5, sent[i]));
      tickets.push_back(t.recv(other, 5, got[i]));
    }
    finish(t, tickets);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      expect(got[i] == pattern(sizes[i], static_cast<int>(i) + other * 100),
             fmt::format("message {}", i));
    }
  });
}

TEST_CASE("messages that nobody expects yet are kept by their tags, in their order") {
  run_tcp_job(2, [](Transport& t) {
    const std::vector<int> tags{7, 0, 7, 32'766, 0, 7};
    const auto size_of = [](std::size_t i) { return 50'000 * i + i; };
    if (t.place().rank == 0) {
      std::vector<Bytes> sent;
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < tags.size(); ++i) sent.push_back(pattern(size_of(i), int(i)));
      for (std::size_t i = 0; i < tags.size(); ++i) tickets.push_back(t.send(1, tags[i], sent[i]));
      finish(t, tickets);
      meet(t, 1);
      return;
    }
    // The last first: all others come before it. Then some that are there, and one that is not.
    Bytes last(size_of(5)), zero(size_of(1)), high(size_of(3)), later(size_of(4));
    Bytes first(size_of(0)), second(size_of(2));
    finish(t, {t.recv(0, 32'766, high)});
    expect(high == pattern(size_of(3), 3), "tag 32766");
    finish(t, {t.recv(0, 7, first)});
    const Ticket two = t.recv(0, 7, second), five = t.recv(0, 7, last);
    finish(t, {five});
    finish(t, {two});
    expect(first == pattern(size_of(0), 0) && second == pattern(size_of(2), 2), "tag 7");
    expect(last == pattern(size_of(5), 5), "the last of tag 7");
    finish(t, {t.recv(0, 0, zero), t.recv(0, 0, later)});
    expect(zero == pattern(size_of(1), 1) && later == pattern(size_of(4), 4), "tag 0");
    meet(t, 0);
  });
}

TEST_CASE("8 MB between all pairs at once, in both directions, do not wait for each other") {
  static constexpr std::size_t kBytes = 8'000'000;
  static constexpr int kRanks = 4;
  run_tcp_job(kRanks, [](Transport& t) {
    std::vector<Bytes> sent, got;
    std::vector<int> others;
    for (int r = 0; r < kRanks; ++r) {
      if (r == t.place().rank) continue;
      others.push_back(r);
      sent.push_back(pattern(kBytes, 10 * t.place().rank + r));
      got.emplace_back(kBytes);
    }
    std::vector<Ticket> sends, recvs;
    for (std::size_t i = 0; i < others.size(); ++i) sends.push_back(t.send(others[i], 1, sent[i]));
    for (std::size_t i = 0; i < others.size(); ++i) recvs.push_back(t.recv(others[i], 1, got[i]));
    // What is waited for is one side only: the other one goes on all the same.
    finish(t, t.place().rank % 2 == 0 ? sends : recvs);
    finish(t, t.place().rank % 2 == 0 ? recvs : sends);
    for (std::size_t i = 0; i < others.size(); ++i) {
      expect(got[i] == pattern(kBytes, 10 * others[i] + t.place().rank), "what came");
    }
  });
}

TEST_CASE("a look at one message moves the others") {
  run_tcp_job(3, [](Transport& t) {
    const int rank = t.place().rank;
    const Bytes big = pattern(20'000'000, rank);
    Bytes got(big.size()), word(1);
    const Bytes one(1);
    if (rank == 0) {
      // Only the answer of 2 is looked at, which needs what 0 sends to 1.
      const Ticket sent = t.send(1, 0, big), answer = t.recv(2, 0, word);
      const auto begin = std::chrono::steady_clock::now();
      while (!t.is_done(answer)) {
        expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "stuck");
      }
      finish(t, {sent});
    } else if (rank == 1) {
      finish(t, {t.recv(0, 0, got)});
      finish(t, {t.send(2, 0, one)});
    } else {
      finish(t, {t.recv(1, 0, word)});
      finish(t, {t.send(0, 0, one)});
    }
  });
}

TEST_CASE("a wait ends at its limit and tells what is open, which goes on afterwards") {
  run_tcp_job(2, [](Transport& t) {
    const int other = 1 - t.place().rank;
    Bytes never(8), late(8);
    const Bytes mine = pattern(8, 1);
    if (t.place().rank == 1) {
      meet(t, other);
      meet(t, other);
      finish(t, {t.send(other, 2, mine)});
      return;
    }
    meet(t, other);
    const Ticket open = t.recv(other, 2, late), done = t.send(other, 9, mine);
    const auto begin = std::chrono::steady_clock::now();
    const auto left = t.wait(std::vector{done, open}, TimeLimit(0.3));
    const TimeLimit took = std::chrono::steady_clock::now() - begin;
    expect(left == std::vector<std::size_t>{1}, "which are open");
    expect(took.count() >= 0.29 && took.count() < 5, "the limit");
    meet(t, other);
    finish(t, {open});
    expect(late == mine, "what came later");
  });
}

TEST_CASE("a message of another size than its receiver expects is an error of its own") {
  std::vector<std::string> texts;
  run_tcp_job(2, [&](Transport& t) {
    const Bytes ten = pattern(10, 1), many = pattern(3'000'000, 2), right = pattern(10, 3);
    if (t.place().rank == 1) {
      finish(t, {t.send(0, 4, ten), t.send(0, 4, ten), t.send(0, 4, many), t.send(0, 4, right),
                 t.send(0, 5, ten), t.send(0, 6, right)});
      return;
    }
    const auto refused = [&](Ticket ticket) {
      try {
        finish(t, {ticket});
      } catch (const CommError& error) {
        texts.push_back(error.what());
      }
    };
    // Larger and smaller than what is expected, before it comes; then what has come already.
    Bytes small(8), large(11), other(2'999'999), good(10), kept(9);
    refused(t.recv(1, 4, small));
    refused(t.recv(1, 4, large));
    const Ticket bad = t.recv(1, 4, other), behind = t.recv(1, 4, good);
    finish(t, {behind});
    expect(good == right, "the message behind");
    refused(bad);
    finish(t, {t.recv(1, 6, good)});
    refused(t.recv(1, 5, kept));
  });
  REQUIRE(texts.size() == 4);
  CHECK(texts[0] ==
        "rank 1 sent 10 B where 8 were expected: the ranks do not call the same "
        "(debug.check_collectives finds where)");
  CHECK(texts[1].find("rank 1 sent 10 B where 11 were expected") == 0);
  CHECK(texts[2].find("rank 1 sent 3000000 B where 2999999 were expected") == 0);
  CHECK(texts[3].find("rank 1 sent 10 B where 9 were expected") == 0);
}

TEST_CASE("a rank leaves when all do, and no earlier") {
  std::atomic<int> leaving{0};
  run_tcp_job(3, [&](Transport& t) {
    if (t.place().rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ++leaving;
    t.leave();
    expect(leaving == 3, "left early");
  });
}

TEST_CASE("ranks of one machine are counted where the launcher did not") {
  run_tcp_job(5, [](Transport& t) {  // two on each machine
    const JobPlace place = t.place();
    expect(place.local_rank == place.rank % 2, "local rank");
    expect(place.local_size == (place.rank == 4 ? 1 : 2), "local size");
  });
}

TEST_CASE("a message with itself, with nobody and under no tag is refused") {
  run_tcp_job(2, [](Transport& t) {
    Bytes byte(1);
    for (const auto& [rank, tag] : {std::pair{t.place().rank, 0},
                                    {2, 0},
                                    {-1, 0},
                                    {1 - t.place().rank, 32'768},
                                    {1 - t.place().rank, -1}}) {
      bool refused = false;
      try {
        t.recv(rank, tag, byte);
      } catch (const InternalError&) {
        refused = true;
      }
      expect(refused, "not refused");
    }
  });
}
