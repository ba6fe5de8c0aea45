// Bytes that processes connected by TCP tell each other, right ones and hostile ones.
#include <cstring>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/comm/tcp/frames.hpp"

using namespace llmtrain;
using namespace llmtrain::tcp;

namespace {

template <std::size_t n>
std::array<std::byte, n> with(std::array<std::byte, n> bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

const Hello kHello{.rank = 2,
                   .size = 4,
                   .purpose = Hello::Purpose::messages,
                   .port = 4711,
                   .build = "0123456789abcdef0123456789abcdef",
                   .host = "node7"};

}  // namespace

TEST_CASE("a hello reads back equal, and one that makes no sense is refused") {
  const HelloBytes bytes = format_hello(kHello);
  CHECK(parse_hello(bytes) == kHello);
  // Places of rank, size, purpose, port and the length of the name.
  for (const auto& [at, value] : {std::pair{12u, 65'536u},
                                  {16u, 65'537u},
                                  {20u, 0u},
                                  {20u, 3u},
                                  {24u, 65'536u},
                                  {28u, 65u}}) {
    CAPTURE(at);
    CHECK_THROWS_AS(parse_hello(with(bytes, at, value)), CommError);
  }
  CHECK_THROWS_AS(parse_hello(with(bytes, 0, 7)), CommError);
  const HelloBytes foreign = with(bytes, 0, 7);
  CHECK(!begins_as_hello(std::span(foreign).first(1)));
  CHECK(begins_as_hello(std::span(bytes).first(3)));
  // Of a version that is not known nothing but the rank is.
  const Hello other = parse_hello(with(with(bytes, 8, 2), 16, ~0u));
  CHECK(other.version == 2);
  CHECK(other.rank == 2);
  Hello odd = kHello;
  odd.host = "a\nb" + std::string(100, 'c');
  CHECK(parse_hello(format_hello(odd)).host == "a?b" + std::string(61, 'c'));
}

TEST_CASE("a table of addresses reads back equal for a job of its size, and whole alone") {
  const Answer table{.ranks = {{.address = "", .port = 1, .host = "a"},
                               {.address = "10.0.0.2", .port = 65'535, .host = "b"},
                               {.address = "fe80::1%eth0", .port = 3, .host = ""}}};
  const std::vector<std::byte> bytes = format_answer(table);
  CHECK(answer_bytes(std::span(bytes).first<kAnswerHeaderBytes>()) ==
        bytes.size() - kAnswerHeaderBytes);
  CHECK(parse_answer(bytes, 3) == table);
  CHECK_THROWS_AS(parse_answer(bytes, 4), CommError);
  CHECK_THROWS_AS(parse_answer(bytes, 2), CommError);
  for (std::size_t size = kAnswerHeaderBytes; size < bytes.size(); ++size) {
    // With a header that is right for what is there.
    std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<long>(size));
    part[8] = static_cast<std::byte>(size - kAnswerHeaderBytes);
    CHECK_THROWS_AS(parse_answer(part, 3), CommError);
  }
  const Answer refusal{.refusal = "rank 2 is late"};
  CHECK(parse_answer(format_answer(refusal), 3) == refusal);
  std::array<std::byte, kAnswerHeaderBytes> header{};
  std::memcpy(header.data(), bytes.data(), header.size());
  CHECK(!answer_bytes(with(header, 0, 7)));
  CHECK(!answer_bytes(with(header, 4, 3)));
  CHECK(!answer_bytes(with(header, 8, 1u << 30)));
}

TEST_CASE("words and headers of messages read back equal, within their bounds") {
  const Word word{.kind = Word::Kind::abort, .code = 75, .rank = 3};
  CHECK(parse_word(format_word(word), 4) == word);
  CHECK_THROWS_AS(parse_word(format_word(word), 3), CommError);
  CHECK_THROWS_AS(parse_word(with(format_word(word), 0, 0), 4), CommError);
  CHECK_THROWS_AS(parse_word(with(format_word(word), 0, 5), 4), CommError);
  CHECK_THROWS_AS(parse_word(with(format_word(word), 4, 256), 4), CommError);

  const MessageHeader header{.tag = 32'767, .bytes = (1ull << 31) - 1};
  CHECK(parse_header(format_header(header)) == header);
  CHECK_THROWS_AS(parse_header(with(format_header(header), 0, 7)), CommError);
  CHECK_THROWS_AS(parse_header(with(format_header(header), 4, 32'768)), CommError);
  CHECK_THROWS_AS(parse_header(with(format_header(header), 8, 1u << 31)), CommError);
  CHECK_THROWS_AS(parse_header(with(format_header(header), 12, 1)), CommError);
}
