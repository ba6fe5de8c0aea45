#pragma once
/// What processes that TCP connects send each other besides the payload of messages: integers in
/// little-endian order at fixed places. Whatever comes from a network is read as hostile: CommError
/// for what no llmtrain sends.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::tcp {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr int kLargestTag = 32'767;
/// As much as a message of MPI holds.
inline constexpr std::uint64_t kLargestMessageBytes = (1ull << 31) - 1;
inline constexpr int kLargestJob = 1 << 16;
inline constexpr std::size_t kHostNameBytes = 64;

/// The first words on a connection, of the process that opened it. Magic word, version and rank
/// keep their places in all versions, so that a process of another one can be named.
struct Hello {
  /// What the connection is for.
  enum class Purpose : std::uint32_t { control = 1, messages = 2 };
  std::uint32_t version = kProtocolVersion;
  int rank = 0;
  int size = 1;
  Purpose purpose = Purpose::control;
  /// Where it takes the connections of others; 0: nowhere.
  int port = 0;
  /// The interface hash of its build.
  std::string build;
  std::string host;

  bool operator==(const Hello&) const = default;
};
inline constexpr std::size_t kHelloBytes = 128;
using HelloBytes = std::array<std::byte, kHelloBytes>;
/// Text beyond its field is cut.
HelloBytes format_hello(const Hello& hello);
/// False as soon as the first bytes are those of something else.
bool begins_as_hello(std::span<const std::byte> first);
/// Of another version only `version` and `rank` are set.
Hello parse_hello(std::span<const std::byte, kHelloBytes> bytes);

/// Where a rank takes connections.
struct RankAddress {
  /// Numeric, as rank 0 sees it; empty: that of rank 0's machine.
  std::string address;
  int port = 0;
  std::string host;

  bool operator==(const RankAddress&) const = default;
};
/// What rank 0 answers to a hello: all addresses, by rank, or why there is no job.
struct Answer {
  std::vector<RankAddress> ranks;
  std::string refusal;

  bool operator==(const Answer&) const = default;
};
inline constexpr std::size_t kAnswerHeaderBytes = 12;
std::vector<std::byte> format_answer(const Answer& answer);
/// Bytes behind the header; nullopt for what is no answer, as of another program.
std::optional<std::size_t> answer_bytes(std::span<const std::byte, kAnswerHeaderBytes> header);
/// Header and all; for a job of `size`.
Answer parse_answer(std::span<const std::byte> bytes, int size);

/// What is told on the connection with rank 0 while a job lives.
struct Word {
  enum class Kind : std::uint32_t {
    abort = 1,    // all end with `code`
    lost = 2,     // `rank` has ended
    leaving = 3,  // this rank has no more messages
    left = 4,     // and neither has any other
  };
  Kind kind = Kind::abort;
  int code = 0;
  int rank = 0;

  bool operator==(const Word&) const = default;
};
inline constexpr std::size_t kWordBytes = 12;
std::array<std::byte, kWordBytes> format_word(const Word& word);
Word parse_word(std::span<const std::byte, kWordBytes> bytes, int size);

/// In front of the payload of a message.
struct MessageHeader {
  int tag = 0;
  std::uint64_t bytes = 0;

  bool operator==(const MessageHeader&) const = default;
};
inline constexpr std::size_t kMessageHeaderBytes = 16;
std::array<std::byte, kMessageHeaderBytes> format_header(const MessageHeader& header);
MessageHeader parse_header(std::span<const std::byte, kMessageHeaderBytes> bytes);

}  // namespace llmtrain::tcp
