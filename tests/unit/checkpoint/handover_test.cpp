#include "lib/checkpoint/handover.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/activity.hpp"
#include "lib/base/parallel.hpp"

namespace llmtrain::checkpoint {

namespace {

std::vector<std::byte> numbers(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

/// Bytes [begin, end) of a file, and a place that they are put to.
struct Target {
  Target(std::uint64_t begin, std::uint64_t end) : begin(begin), end(end), bytes(end - begin) {}
  Handover::Want want(const std::string& file) {
    return {file, begin, end, [this](std::uint64_t offset, std::span<const std::byte> part) {
              std::ranges::copy(part, bytes.begin() + static_cast<std::ptrdiff_t>(offset));
            }};
  }
  std::uint64_t begin, end;
  std::vector<std::byte> bytes;
};

/// Offers `file` in pieces, each of which is hashed for so long, and spoilt when its time is over.
void offer_all(Handover& handover, const std::string& file, std::span<const std::byte> bytes,
               std::size_t piece_bytes, std::chrono::milliseconds hashing = {}) {
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
    const auto piece = bytes.subspan(at, std::min(piece_bytes, bytes.size() - at));
    std::vector<std::byte> copy(piece.begin(), piece.end());
    {
      const Handover::Offer offer(&handover, file, at, copy);
      std::this_thread::sleep_for(hashing);
    }
    std::ranges::fill(copy, std::byte{0xff});
  }
}

bool nothing_to_do() { return false; }

void serve(Handover& handover, int threads) {
  parallel_for(static_cast<std::size_t>(threads), threads,
               [&](std::size_t) { handover.serve(nothing_to_do); });
}

}  // namespace

TEST_CASE("a handover brings every wanted byte, wherever pieces end and however many take") {
  const std::vector<std::byte> bytes = numbers(1000);
  for (const std::size_t piece_bytes : {1u, 7u, 64u, 999u, 1000u, 5000u}) {
    for (const int takers : {1, 3}) {
      CAPTURE(piece_bytes);
      CAPTURE(takers);
      Handover handover(0, 1);
      std::vector<Target> targets{{0, 10}, {10, 11}, {300, 900}, {990, 1000}, {300, 900}};
      Target other(5, 6);
      std::vector<Handover::Want> wants{other.want("b")};
      for (Target& target : targets) wants.push_back(target.want("a"));
      auto checker = std::async(std::launch::async, [&] {
        offer_all(handover, "nobody wants it", bytes, piece_bytes);
        offer_all(handover, "a", bytes, piece_bytes);
        offer_all(handover, "b", bytes, piece_bytes);
        handover.end();
      });
      CHECK(handover.expect(std::move(wants)));
      serve(handover, takers);
      checker.get();
      for (const Target& target : targets) {
        CHECK(std::ranges::equal(
            target.bytes, std::span(bytes).subspan(target.begin, target.end - target.begin)));
      }
      CHECK(other.bytes.front() == bytes[5]);
      CHECK(handover.is_complete());
    }
  }
}

TEST_CASE("a handover takes once more what is read once more") {
  const std::vector<std::byte> bytes = numbers(100), damaged(60);
  Handover handover(0, 1);
  Target target(0, 100);
  handover.expect({target.want("a")});
  auto checker = std::async(std::launch::async, [&] {
    offer_all(handover, "a", damaged, 20);
    offer_all(handover, "a", bytes, 20);
    handover.end();
  });
  serve(handover, 2);
  checker.get();
  CHECK(target.bytes == bytes);
  CHECK(handover.is_complete());
}

TEST_CASE("a handover is not complete where a check ended before the last byte") {
  const std::vector<std::byte> bytes = numbers(100);
  for (const std::size_t offered : {0u, 99u, 100u}) {
    Handover handover(0, 1);
    Target target(0, 100);
    handover.expect({target.want("a")});
    auto checker = std::async(std::launch::async, [&] {
      offer_all(handover, "a", std::span(bytes).first(offered), 20);
      handover.end();
    });
    serve(handover, 1);
    checker.get();
    CHECK(handover.is_complete() == (offered == 100));
  }
}

TEST_CASE("a piece stays what it is until the last one has taken of it") {
  const std::vector<std::byte> bytes = numbers(40);
  for (const int takers : {1, 3}) {
    CAPTURE(takers);
    Handover handover(0, 1);
    Target target(0, 40);
    Handover::Want slow = target.want("a");
    slow.take = [take = slow.take](std::uint64_t offset, std::span<const std::byte> part) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      take(offset, part);
    };
    handover.expect({slow});
    auto checker = std::async(std::launch::async, [&] {
      offer_all(handover, "a", bytes, 20, std::chrono::milliseconds(20));
      handover.end();
    });
    serve(handover, takers);
    checker.get();
    CHECK(target.bytes == bytes);
  }
}

TEST_CASE("whoever waits for a check does something else meanwhile, and gives no sign of life") {
  Handover handover(0, 1);
  Target target(0, 1);
  handover.expect({target.want("a")});
  int left = 3;
  std::uint64_t begin = 0, end = 0;
  auto checker = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    begin = activity::ticks();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    end = activity::ticks();
    handover.end();
  });
  handover.serve([&] { return --left > 0; });
  checker.get();
  CHECK(left == 0);
  CHECK(begin == end);
}

TEST_CASE("a check goes on alone when nobody takes anything any more") {
  const std::vector<std::byte> bytes = numbers(100);
  Handover never_expected(0, 1), failed(0, 1), left(0, 1);
  std::vector<Handover*> all{&never_expected, &failed, &left};
  auto checker = std::async(std::launch::async, [&] {
    for (Handover* handover : all) {
      offer_all(*handover, "a", bytes, 10);
      handover->end();
    }
  });
  never_expected.close();
  Target target(0, 100);
  CHECK_FALSE(never_expected.expect({target.want("a")}));
  never_expected.serve(nothing_to_do);  // waits for nothing

  Handover::Want refuses{"a", 0, 100, [](std::uint64_t, std::span<const std::byte>) {
                           throw std::runtime_error("no room");
                         }};
  failed.expect({refuses});
  CHECK_THROWS_WITH_AS(failed.serve(nothing_to_do), "no room", std::runtime_error);

  left.expect({target.want("a")});
  left.close();
  const bool alone = checker.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  while (checker.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    for (Handover* handover : all) handover->close();
  }
  CHECK(alone);
  CHECK(never_expected.is_complete());  // whoever wants something reads it
  CHECK_FALSE(failed.is_complete());
  CHECK_FALSE(left.is_complete());
}

TEST_CASE("a handover of which nothing is wanted is complete, and keeps nobody") {
  const std::vector<std::byte> bytes = numbers(100);
  Handover handover(0, 1);
  CHECK_FALSE(handover.expect({}));
  offer_all(handover, "a", bytes, 10);
  handover.end();
  CHECK(handover.is_complete());
}

}  // namespace llmtrain::checkpoint
