#pragma once
/// What one collective or message of this process has under way.

#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "lib/comm/transport.hpp"

namespace llmtrain {

/// Messages that were begun and are not known to be done. Their buffers are the transport's until
/// they are; whoever gives them up forgets them.
class OpenMessages {
 public:
  explicit OpenMessages(Transport& transport) : transport_(&transport) {}

  /// In pieces, where there is much: no library then meets a size beyond 2^31. Neither waits.
  void send(int rank, int tag, std::span<const std::byte> data);
  void recv(int rank, int tag, std::span<std::byte> data);

  /// Whether all of them are done.
  bool are_done();
  /// Until all of them are done; false when `limit` is over before.
  bool wait(TimeLimit limit);
  /// The ranks at the other ends of those that are not done.
  std::set<int> peers();
  void forget() { open_.clear(); }

 private:
  struct Message {
    Transport::Ticket ticket;
    int rank;
  };
  Transport* transport_;
  std::vector<Message> open_;
};

}  // namespace llmtrain
