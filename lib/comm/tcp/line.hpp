#pragma once
/// The messages on one connection.

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/tcp/frames.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain::tcp {

/// What was begun, and whether it is done.
class Tickets {
 public:
  using Ticket = Transport::Ticket;
  Ticket add();
  /// With a problem its owner gets a CommError.
  void finish(Ticket ticket, std::string problem = "");
  /// True once for one that is done. CommError for one with a problem; both are forgotten.
  bool take(Ticket ticket);

 private:
  struct State {
    bool done = false;
    std::string problem;
  };
  std::vector<State> states_;
  std::vector<Ticket> free_;
};

/// The connection is closed, and not by us.
struct LineEnded {};

/// A connection with another rank, on which messages go one after another in both directions. It is
/// read only while a message from there is expected, straight into where it belongs; what comes
/// before it under other tags is kept. So the memory for messages that nobody expects yet is
/// bounded by what the other side sends ahead of an expected one, and beyond that by the system's
/// buffers, after which the sender waits.
class Line {
 public:
  using Ticket = Transport::Ticket;
  /// With `peer`; tickets are those of `tickets`, which outlives it.
  Line(Socket socket, int peer, Tickets& tickets)
      : socket_(std::move(socket)), peer_(peer), tickets_(&tickets) {}

  void send(Ticket ticket, int tag, std::span<const std::byte> data);
  void expect(Ticket ticket, int tag, std::span<std::byte> into);

  int fd() const { return socket_.fd(); }
  bool wants_to_write() const { return !outgoing_.empty(); }
  bool wants_to_read() const { return expected_ > 0; }
  /// As much as goes without waiting; false when that is nothing. LineEnded; CommError for bytes
  /// that are no message.
  bool write();
  bool read();
  void close() { socket_.close(); }

 private:
  struct Outgoing {
    std::array<std::byte, kMessageHeaderBytes> header;
    std::span<const std::byte> data;
    Ticket ticket;
    std::size_t sent = 0;  // of header and data
  };
  struct Expected {
    Ticket ticket;
    std::span<std::byte> into;
  };
  /// One tag's: messages for those who wait, or those who wait for messages.
  struct Queue {
    std::deque<Expected> expected;
    std::deque<std::vector<std::byte>> kept;
  };
  /// Behind a header.
  struct Incoming {
    MessageHeader header;
    std::size_t got = 0;
    enum class Fate { straight, keep, drop } fate = Fate::keep;
    Expected expected{};           // straight
    std::vector<std::byte> bytes;  // keep; drop: any
  };

  /// Where the next bytes belong; empty when a message is complete.
  std::span<std::byte> room();
  void advance(std::size_t bytes);
  void begin_message();
  void end_message();
  /// The size of what has come for it is not the one that it expects.
  void refuse(Ticket ticket, std::size_t bytes, std::size_t expected_bytes);
  void deliver(const Expected& expected, std::span<const std::byte> message);

  Socket socket_;
  int peer_;
  Tickets* tickets_;
  std::deque<Outgoing> outgoing_;
  std::map<int, Queue> queues_;  // by tag
  std::size_t expected_ = 0;     // in all of them, and the one that is coming
  std::array<std::byte, kMessageHeaderBytes> header_{};
  std::size_t header_got_ = 0;
  Incoming incoming_;  // once the header is there
};

}  // namespace llmtrain::tcp
