#include "lib/comm/tcp/frames.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/require.hpp"

namespace llmtrain::tcp {

namespace {

constexpr std::string_view kMagic = "llmtrain";
constexpr std::uint32_t kAnswerMark = 0x72744C6C;
constexpr std::uint32_t kMessageMark = 0x67736D6C;
constexpr std::size_t kBuildBytes = 32;
constexpr std::size_t kAddressBytes = 64;
constexpr std::size_t kRefusalBytes = 4096;
constexpr std::uint32_t kTable = 1, kRefusal = 2;

/// Appends to bytes.
class Writer {
 public:
  template <class T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void text(std::string_view text) {
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), data, data + text.size());
  }
  /// In a field of its own, filled up with zeros.
  void field(std::string_view content, std::size_t size) {
    text(content.substr(0, size));
    bytes.resize(bytes.size() + size - std::min(size, content.size()));
  }
  /// With its length in front.
  void short_text(std::string_view content, std::size_t largest) {
    number(static_cast<std::uint8_t>(std::min(content.size(), largest)));
    text(content.substr(0, largest));
  }
  template <std::size_t n>
  std::array<std::byte, n> array() const {
    std::array<std::byte, n> all{};
    require(bytes.size() == n, "a frame of {} B, not {}", bytes.size(), n);
    std::copy(bytes.begin(), bytes.end(), all.begin());
    return all;
  }
  std::vector<std::byte> bytes;
};

/// Takes from the front of bytes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  T number() {
    std::uint64_t value = 0;
    const auto bytes = take(sizeof(T));
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  /// CommError beyond `largest`.
  int number_up_to(std::uint32_t largest, std::string_view what) {
    const auto value = number<std::uint32_t>();
    require<CommError>(value <= largest, "a peer sent {} {}, which is beyond {}", what, value,
                       largest);
    return static_cast<int>(value);
  }
  /// What others print: no control characters. Ends where a field is filled up with zeros.
  std::string text(std::size_t size) {
    std::string text;
    for (const std::byte b : take(size)) {
      const char c = static_cast<char>(b);
      if (c == 0) break;
      text += c >= ' ' && c <= '~' ? c : '?';
    }
    return text;
  }
  std::string short_text(std::size_t largest) {
    const std::size_t size = number<std::uint8_t>();
    require<CommError>(size <= largest, "a peer sent a name of {} characters", size);
    return text(size);
  }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    require<CommError>(size <= left_.size(), "a peer sent {} B where {} were to come", left_.size(),
                       size);
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  std::span<const std::byte> left_;
};

}  // namespace

HelloBytes format_hello(const Hello& hello) {
  Writer writer;
  writer.text(kMagic);
  writer.number(hello.version);
  writer.number(static_cast<std::uint32_t>(hello.rank));
  writer.number(static_cast<std::uint32_t>(hello.size));
  writer.number(static_cast<std::uint32_t>(hello.purpose));
  writer.number(static_cast<std::uint32_t>(hello.port));
  writer.number(static_cast<std::uint32_t>(std::min(hello.host.size(), kHostNameBytes)));
  writer.field(hello.build, kBuildBytes);
  writer.field(hello.host, kHostNameBytes);
  return writer.array<kHelloBytes>();
}

bool begins_as_hello(std::span<const std::byte> first) {
  const std::size_t size = std::min(first.size(), kMagic.size());
  return std::memcmp(first.data(), kMagic.data(), size) == 0;
}

Hello parse_hello(std::span<const std::byte, kHelloBytes> bytes) {
  require<CommError>(begins_as_hello(bytes), "a connection that does not begin as llmtrain's do");
  Reader reader(bytes.subspan(kMagic.size()));
  Hello hello;
  hello.version = reader.number<std::uint32_t>();
  hello.rank = reader.number_up_to(kLargestJob - 1, "a rank of");
  if (hello.version != kProtocolVersion) return hello;
  hello.size = reader.number_up_to(kLargestJob, "a number of ranks of");
  const int purpose = reader.number_up_to(2, "a purpose of");
  require<CommError>(purpose > 0, "a peer did not say what it connects for");
  hello.purpose = static_cast<Hello::Purpose>(purpose);
  hello.port = reader.number_up_to(65'535, "a port of");
  const int host_bytes = reader.number_up_to(kHostNameBytes, "a name's length of");
  hello.build = reader.text(kBuildBytes);
  hello.host = reader.text(static_cast<std::size_t>(host_bytes));
  return hello;
}

std::vector<std::byte> format_answer(const Answer& answer) {
  Writer body;
  if (answer.refusal.empty()) {
    body.number(static_cast<std::uint32_t>(answer.ranks.size()));
    for (const RankAddress& rank : answer.ranks) {
      body.number(static_cast<std::uint16_t>(rank.port));
      body.short_text(rank.address, kAddressBytes);
      body.short_text(rank.host, kHostNameBytes);
    }
  } else {
    body.text(std::string_view(answer.refusal).substr(0, kRefusalBytes));
  }
  Writer writer;
  writer.number(kAnswerMark);
  writer.number(answer.refusal.empty() ? kTable : kRefusal);
  writer.number(static_cast<std::uint32_t>(body.bytes.size()));
  writer.bytes.insert(writer.bytes.end(), body.bytes.begin(), body.bytes.end());
  return std::move(writer.bytes);
}

std::optional<std::size_t> answer_bytes(std::span<const std::byte, kAnswerHeaderBytes> header) {
  Reader reader(header);
  if (reader.number<std::uint32_t>() != kAnswerMark) return std::nullopt;
  const auto kind = reader.number<std::uint32_t>();
  const std::size_t bytes = reader.number<std::uint32_t>();
  constexpr std::size_t kTableBytes =
      4 + std::size_t{kLargestJob} * (4 + kAddressBytes + kHostNameBytes);
  if (kind == kTable && bytes <= kTableBytes) return bytes;
  if (kind == kRefusal && bytes <= kRefusalBytes) return bytes;
  return std::nullopt;
}

Answer parse_answer(std::span<const std::byte> bytes, int size) {
  Reader reader(bytes);
  reader.number<std::uint32_t>();
  const auto kind = reader.number<std::uint32_t>();
  const std::size_t body = reader.number<std::uint32_t>();
  require<CommError>(bytes.size() - kAnswerHeaderBytes == body, "rank 0 sent another answer");
  Answer answer;
  if (kind == kRefusal) {
    answer.refusal = reader.text(body);
    if (answer.refusal.empty()) answer.refusal = "rank 0 refused this process";
    return answer;
  }
  require<CommError>(kind == kTable && reader.number<std::uint32_t>() == std::uint32_t(size),
                     "rank 0 has another number of ranks");
  for (int rank = 0; rank < size; ++rank) {
    RankAddress place;
    place.port = reader.number<std::uint16_t>();
    place.address = reader.short_text(kAddressBytes);
    place.host = reader.short_text(kHostNameBytes);
    answer.ranks.push_back(std::move(place));
  }
  require<CommError>(reader.empty(), "rank 0 sent more addresses than there are ranks");
  return answer;
}

std::array<std::byte, kWordBytes> format_word(const Word& word) {
  Writer writer;
  writer.number(static_cast<std::uint32_t>(word.kind));
  writer.number(static_cast<std::uint32_t>(word.code));
  writer.number(static_cast<std::uint32_t>(word.rank));
  return writer.array<kWordBytes>();
}

Word parse_word(std::span<const std::byte, kWordBytes> bytes, int size) {
  Reader reader(bytes);
  Word word;
  const int kind = reader.number_up_to(static_cast<std::uint32_t>(Word::Kind::left), "a word of");
  require<CommError>(kind > 0, "a peer sent no word");
  word.kind = static_cast<Word::Kind>(kind);
  word.code = reader.number_up_to(255, "an exit code of");
  word.rank = reader.number_up_to(static_cast<std::uint32_t>(size - 1), "a rank of");
  return word;
}

std::array<std::byte, kMessageHeaderBytes> format_header(const MessageHeader& header) {
  Writer writer;
  writer.number(kMessageMark);
  writer.number(static_cast<std::uint32_t>(header.tag));
  writer.number(header.bytes);
  return writer.array<kMessageHeaderBytes>();
}

MessageHeader parse_header(std::span<const std::byte, kMessageHeaderBytes> bytes) {
  Reader reader(bytes);
  require<CommError>(reader.number<std::uint32_t>() == kMessageMark,
                     "a peer sent something else where a message was to begin");
  MessageHeader header;
  header.tag = reader.number_up_to(kLargestTag, "a tag of");
  header.bytes = reader.number<std::uint64_t>();
  require<CommError>(header.bytes <= kLargestMessageBytes, "a peer sent a message of {} B",
                     header.bytes);
  return header;
}

}  // namespace llmtrain::tcp
