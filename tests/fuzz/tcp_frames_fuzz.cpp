// Arbitrary bytes as what processes that TCP connects tell each other: refused, or frames that are
// written and read back equal; and as what comes on a connection of messages, with recvs of some
// sizes and tags: refused, or each gets a message of its size.

#include <algorithm>
#include <cstdint>
#include <span>
#include <sys/socket.h>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/tcp/frames.hpp"
#include "lib/comm/tcp/line.hpp"

using namespace llmtrain;
using namespace llmtrain::tcp;

namespace {

using Bytes = std::span<const std::byte>;

template <class Read>
void unless_refused(const Read& read) {
  try {
    read();
  } catch (const CommError&) {
  }
}

void read_hello(Bytes bytes) {
  if (bytes.size() < kHelloBytes) return;
  const Hello hello = parse_hello(bytes.first<kHelloBytes>());
  if (hello.version != kProtocolVersion) return;
  require(parse_hello(format_hello(hello)) == hello, "a hello does not read back equal");
}

void read_answer(Bytes bytes, int size) {
  if (bytes.size() < kAnswerHeaderBytes) return;
  const auto more = answer_bytes(bytes.first<kAnswerHeaderBytes>());
  if (!more || *more > bytes.size() - kAnswerHeaderBytes) return;
  const Answer answer = parse_answer(bytes.first(kAnswerHeaderBytes + *more), size);
  require(answer.refusal.empty() ? answer.ranks.size() == static_cast<std::size_t>(size)
                                 : answer.ranks.empty(),
          "an answer that is both or none");
  require(parse_answer(format_answer(answer), size) == answer,
          "an answer does not read back equal");
}

void read_word(Bytes bytes, int size) {
  if (bytes.size() < kWordBytes) return;
  const Word word = parse_word(bytes.first<kWordBytes>(), size);
  require(word.rank < size, "a rank beyond the job");
  require(parse_word(format_word(word), size) == word, "a word does not read back equal");
}

void read_header(Bytes bytes) {
  if (bytes.size() < kMessageHeaderBytes) return;
  const MessageHeader header = parse_header(bytes.first<kMessageHeaderBytes>());
  require(parse_header(format_header(header)) == header, "a header does not read back equal");
}

/// Headers that are right where `bytes` would have them, so that messages come through.
std::vector<std::byte> with_headers(Bytes bytes) {
  std::vector<std::byte> stream;
  while (bytes.size() >= 2) {
    const std::size_t length =
        std::min<std::size_t>(std::to_integer<std::size_t>(bytes[1]), bytes.size() - 2);
    const auto header = format_header({.tag = std::to_integer<int>(bytes[0]) % 4, .bytes = length});
    stream.insert(stream.end(), header.begin(), header.end());
    stream.insert(stream.end(), bytes.begin() + 2, bytes.begin() + 2 + long(length));
    bytes = bytes.subspan(2 + length);
  }
  return stream;
}

void read_line(Bytes bytes, Bytes sizes) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return;
  const Socket writer(ends[0]);
  Tickets tickets;
  Line line(Socket(ends[1]), 1, tickets);
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Tickets::Ticket> open;
  // Some recvs before it comes, others between.
  const std::size_t half = bytes.size() / 2;
  std::size_t next = 0;
  for (const Bytes part : {bytes.first(half), bytes.subspan(half)}) {
    for (std::size_t i = 0; i < 4 && next < sizes.size(); ++i, ++next) {
      const auto size = std::to_integer<std::size_t>(sizes[next]);
      buffers.emplace_back(size % 64);
      open.push_back(tickets.add());
      line.expect(open.back(), static_cast<int>(size / 64), buffers.back());
    }
    [[maybe_unused]] const auto n = ::send(writer.fd(), part.data(), part.size(), MSG_NOSIGNAL);
    line.read();
  }
  for (const auto ticket : open) unless_refused([&] { tickets.take(ticket); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
  if (count < 10) return 0;
  const Bytes all = std::as_bytes(std::span(data, count));
  const int size = 1 + std::to_integer<int>(all[0]) % 8;
  const Bytes bytes = all.subspan(1);
  unless_refused([&] { read_hello(bytes); });
  unless_refused([&] { read_answer(bytes, size); });
  unless_refused([&] { read_word(bytes, size); });
  unless_refused([&] { read_header(bytes); });
  const Bytes sizes = all.first(9), stream = all.subspan(9);
  const std::vector<std::byte> headed = with_headers(stream);
  for (const Bytes line : {stream, Bytes(headed)}) {
    unless_refused([&] { read_line(line, sizes); });
  }
  return 0;
}
