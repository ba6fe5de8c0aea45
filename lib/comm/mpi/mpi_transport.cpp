// The plugin that connects processes by MPI. Of MPI it takes messages alone: what is added, in
// which order and when, is lib/comm's.
#include <array>
#include <chrono>
#include <cstdlib>
#include <interface_hash.h>  // generated: cmake/interface_hash.cmake
#include <numeric>
#include <thread>
#include <vector>

#include <mpi.h>

#include "lib/base/activity.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/plugin.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/transport.hpp"

namespace llmtrain {

namespace {

void check(int status, std::string_view what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw CommError(fmt::format("MPI failed to {}: {}", what,
                              std::string_view(text.data(), static_cast<std::size_t>(length))));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    // Threads of other ranks wait for the same cores, and no launcher knows of ours.
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
    require<CommError>(provided >= MPI_THREAD_SERIALIZED,
                       "this MPI takes calls of the first thread only");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "make a communicator");
    check(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "return errors");
    check(MPI_Comm_rank(world_, &place_.rank), "tell the rank");
    check(MPI_Comm_size(world_, &place_.size), "tell the size");
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, place_.rank, MPI_INFO_NULL, &node),
          "find the processes of this machine");
    check(MPI_Comm_rank(node, &place_.local_rank), "tell the local rank");
    check(MPI_Comm_size(node, &place_.local_size), "tell the local size");
    check(MPI_Comm_free(&node), "free a communicator");
  }

  std::string_view name() const override { return "mpi"; }
  JobPlace place() const override { return place_; }

  Ticket send(int to, int tag, std::span<const std::byte> data) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(
        MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, world_, &request),
        "send");
    return keep({.request = request});
  }
  Ticket recv(int from, int tag, std::span<std::byte> data) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag, world_,
                    &request),
          "receive");
    return keep(
        {.request = request, .expected_bytes = static_cast<int>(data.size()), .from = from});
  }
  bool is_done(Ticket ticket) override {
    Message& message = messages_[ticket];
    int done = 0;
    MPI_Status status;
    check(MPI_Test(&message.request, &done, &status), "finish a message");
    if (done == 0) return false;
    message.check_size(status);
    free_.push_back(ticket);
    return true;
  }
  std::vector<std::size_t> wait(std::span<const Ticket> tickets, TimeLimit limit) override {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::size_t> open(tickets.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
    while (true) {
      std::erase_if(open, [&](std::size_t i) { return is_done(tickets[i]); });
      if (open.empty() || waited_longer(begin, limit)) return open;
      activity::tick();
      rest(0);
    }
  }
  void rest(int) override { std::this_thread::yield(); }

  void leave() override {
    check(MPI_Comm_free(&world_), "free a communicator");
    check(MPI_Finalize(), "end");
  }
  // Open MPI's mpirun ends all when one exits with an error. Asked for the same by MPI_Abort while
  // another rank is in MPI_Finalize, that of 4.1 hangs, or crashes, two times out of a hundred.
  [[noreturn]] void abort(int code) override {
    if (!is_of_mpirun_) MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    int expected_bytes = -1;  // of what comes from `from`
    int from = -1;

    void check_size(const MPI_Status& status) const {
      if (expected_bytes < 0) return;
      int bytes = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &bytes), "tell the size of a message");
      require<CommError>(bytes == expected_bytes,
                         "rank {} sent {} B where {} were expected: the ranks do not call the same "
                         "(debug.check_collectives finds where)",
                         from, bytes, expected_bytes);
    }
  };

  Ticket keep(const Message& message) {
    if (free_.empty()) {
      messages_.push_back(message);
      return static_cast<Ticket>(messages_.size() - 1);
    }
    const Ticket ticket = free_.back();
    free_.pop_back();
    messages_[ticket] = message;
    return ticket;
  }

  const bool is_of_mpirun_ = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  MPI_Comm world_ = MPI_COMM_NULL;
  JobPlace place_;
  std::vector<Message> messages_;
  std::vector<Ticket> free_;
};

void* transport() {
  static MpiTransport transport;  // starts MPI
  return static_cast<Transport*>(&transport);
}

}  // namespace

}  // namespace llmtrain

extern "C" __attribute__((visibility("default"))) const llmtrain::PluginEntry* llmtrain_plugin() {
  static const llmtrain::PluginEntry entry{LLMTRAIN_INTERFACE_HASH, &llmtrain::transport};
  return &entry;
}
