// NCCL for emulated GPUs of several processes of one machine, by shared memory.
//
// What this stand-in believes of NCCL 2: calls of a group are carried out in the order in which its
// members make them, on the device, behind what their stream holds; all members make the same;
// between ncclGroupStart and ncclGroupEnd sends and receives go on at once; two members of a group
// have two GPUs. Sums are in an order that is not ours, each term in the type of the data. Which
// links the real one takes, how fast, and how it fails, only GPUs can show.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <nccl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "lib/tensor/dtype.hpp"
#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/emulation.hpp"

namespace {

using llmtrain::DType;

constexpr int kMostMembers = 8;
constexpr std::size_t kSlot = std::size_t{16} << 20;

enum class Kind : std::int32_t { all_reduce, all_gather, reduce_scatter, reduce, broadcast };

/// What all members of a group must call alike.
struct Call {
  Kind kind;
  std::uint64_t count;
  std::int32_t type, op, root;
  bool operator==(const Call&) const = default;
};

/// Letters in the order of their sending.
struct Mailbox {
  static constexpr int kLetters = 64;
  std::atomic<std::int64_t> sent, received;
  std::int64_t bytes[kLetters];
};
constexpr std::size_t kLetter = kSlot / Mailbox::kLetters;

/// Pages that nobody touches take no memory.
struct Shared {
  std::atomic<int> joined, arrived, generation;
  int devices[kMostMembers];
  Call calls[kMostMembers];
  Mailbox mail[kMostMembers][kMostMembers];
  std::byte data[kMostMembers][kSlot];                   // of collectives, by member
  std::byte letters[kMostMembers][kMostMembers][kSlot];  // from one to another
};

void wait_until(const std::function<bool()>& come) {
  while (!come()) {
    simt::run_what_is_ready();
    if (!come()) ::usleep(20);
  }
}

std::string last_error;

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T>
void join_terms(T* sum, const T* term, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    if (op == ncclSum) sum[i] = static_cast<T>(sum[i] + term[i]);
    if (op == ncclMax && term[i] > sum[i]) sum[i] = term[i];
    if (op == ncclMin && term[i] < sum[i]) sum[i] = term[i];
  }
}

template <class T, class Narrow>
void join_narrow(T* sum, const T* term, std::size_t count, ncclRedOp_t op, const Narrow& narrow) {
  for (std::size_t i = 0; i < count; ++i) {
    float wide = to_float(sum[i]);
    const float other = to_float(term[i]);
    join_terms(&wide, &other, 1, op);
    sum[i] = narrow(wide);
  }
}

void join(std::byte* sum, const std::byte* term, std::size_t count, ncclDataType_t type,
          ncclRedOp_t op) {
  const auto as = [&]<class T>(T) {
    join_terms(reinterpret_cast<T*>(sum), reinterpret_cast<const T*>(term), count, op);
  };
  switch (type) {
    case ncclFloat64:
      return as(double{});
    case ncclFloat32:
      return as(float{});
    case ncclInt64:
      return as(std::int64_t{});
    case ncclInt32:
      return as(std::int32_t{});
    case ncclBfloat16:
      return join_narrow(reinterpret_cast<llmtrain::bf16*>(sum),
                         reinterpret_cast<const llmtrain::bf16*>(term), count, op,
                         [](float x) { return llmtrain::to_bf16(x); });
    case ncclFloat16:
      return join_narrow(reinterpret_cast<llmtrain::f16*>(sum),
                         reinterpret_cast<const llmtrain::f16*>(term), count, op,
                         [](float x) { return llmtrain::to_f16(x); });
    default:
      simt::die("a reduction in a type that the fake NCCL does not add");
  }
}

}  // namespace

struct ncclComm {
  Shared* shared;
  int rank, size;

  void meet() const {
    const int generation = shared->generation;
    if (++shared->arrived == size) {
      shared->arrived = 0;
      ++shared->generation;
      return;
    }
    wait_until([&] { return shared->generation != generation; });
  }

  /// `compute` sees what all members gave.
  void collective(const Call& call, const void* in, std::size_t bytes,
                  const std::function<void()>& compute) const {
    if (bytes > kSlot) simt::die("the fake NCCL takes 16 MiB at a time");
    shared->calls[rank] = call;
    if (in != nullptr) std::memcpy(shared->data[rank], in, bytes);
    meet();
    for (int m = 0; m < size; ++m) {
      if (!(shared->calls[m] == call)) simt::die("members of a group called NCCL for other things");
    }
    compute();
    meet();
  }

  /// From the last member to the first.
  void reduce_to(void* out, std::size_t at, const Call& call) const {
    const auto type = static_cast<ncclDataType_t>(call.type);
    const std::size_t bytes = call.count * size_of(type);
    std::vector<std::byte> sum(shared->data[size - 1] + at, shared->data[size - 1] + at + bytes);
    for (int m = size - 2; m >= 0; --m) {
      join(sum.data(), shared->data[m] + at, call.count, type, static_cast<ncclRedOp_t>(call.op));
    }
    std::memcpy(out, sum.data(), bytes);
  }
};

namespace {

/// What is done between the begin and the end of a group.
struct Opened {
  int depth = 0;
  cudaStream_t stream = nullptr;
  std::vector<std::function<void()>> sends, others;
};
thread_local Opened opened;

void submit(cudaStream_t stream, std::function<void()> work, std::function<bool()> ready,
            bool is_send = false) {
  if (opened.depth == 0) return simt::enqueue_exchange(stream, std::move(work), std::move(ready));
  if (opened.stream != nullptr && opened.stream != stream) simt::die("a group on two streams");
  opened.stream = stream;
  (is_send ? opened.sends : opened.others).push_back(std::move(work));
}

/// A collective; ready when all others wait for this member.
void submit_collective(cudaStream_t stream, ncclComm_t group, std::function<void()> work) {
  submit(stream, std::move(work), [group] { return group->shared->arrived == group->size - 1; });
}

std::string path_of(const ncclUniqueId& id) { return id.internal; }

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  const char* mode = std::getenv("LLMTRAIN_FAKE_NCCL");
  *version = mode != nullptr && std::strcmp(mode, "old") == 0 ? 21205 : 22809;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made{0};
  std::memset(id, 0, sizeof(*id));
  const std::string name =
      "/llmtrain-fake-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(made++);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* group, int size, ncclUniqueId id, int rank) {
  if (size > kMostMembers) simt::die("the fake NCCL has groups of eight");
  const int file = ::shm_open(path_of(id).c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Shared)) != 0) {
    last_error = "no shared memory named " + path_of(id);
    return ncclSystemError;
  }
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* shared = static_cast<Shared*>(memory);
  cudaGetDevice(&shared->devices[rank]);
  ++shared->joined;
  wait_until([&] { return shared->joined >= size; });
  ::shm_unlink(path_of(id).c_str());
  for (int m = 0; m < size; ++m) {
    if (m == rank || shared->devices[m] != shared->devices[rank]) continue;
    last_error =
        "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(m);
    return ncclInvalidUsage;
  }
  *group = new ncclComm{shared, rank, size};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t group) {
  ::munmap(group->shared, sizeof(Shared));
  delete group;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t group, cudaStream_t stream) {
  const Call call{Kind::all_reduce, count, type, op, 0};
  submit_collective(stream, group, [=] {
    group->collective(call, in, count * size_of(type), [&] { group->reduce_to(out, 0, call); });
  });
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t group, cudaStream_t stream) {
  const Call call{Kind::all_gather, count, type, 0, 0};
  const std::size_t bytes = count * size_of(type);
  submit_collective(stream, group, [=] {
    group->collective(call, in, bytes, [&] {
      for (int m = 0; m < group->size; ++m) {
        std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(m) * bytes,
                    group->shared->data[m], bytes);
      }
    });
  });
  return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t group, cudaStream_t stream) {
  const Call call{Kind::reduce_scatter, count, type, op, 0};
  const std::size_t bytes = count * size_of(type);
  submit_collective(stream, group, [=] {
    group->collective(call, in, bytes * static_cast<std::size_t>(group->size), [&] {
      group->reduce_to(out, static_cast<std::size_t>(group->rank) * bytes, call);
    });
  });
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t group, cudaStream_t stream) {
  const Call call{Kind::reduce, count, type, op, root};
  submit_collective(stream, group, [=] {
    group->collective(call, in, count * size_of(type), [&] {
      if (group->rank == root) group->reduce_to(out, 0, call);
    });
  });
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t group, cudaStream_t stream) {
  const Call call{Kind::broadcast, count, type, 0, root};
  const std::size_t bytes = count * size_of(type);
  submit_collective(stream, group, [=] {
    const void* mine = group->rank == root ? in : nullptr;
    group->collective(call, mine, bytes,
                      [&] { std::memcpy(out, group->shared->data[root], bytes); });
  });
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int to,
                      ncclComm_t group, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const auto send = [=] {
    Mailbox& mail = group->shared->mail[group->rank][to];
    if (bytes > kLetter || mail.sent - mail.received == Mailbox::kLetters) {
      simt::die("the fake NCCL holds 64 letters of 256 KiB");
    }
    const auto at = static_cast<std::size_t>(mail.sent % Mailbox::kLetters);
    mail.bytes[at] = static_cast<std::int64_t>(bytes);
    std::memcpy(group->shared->letters[group->rank][to] + at * kLetter, in, bytes);
    ++mail.sent;
  };
  submit(
      stream, send, [] { return true; }, true);
  // The host may wait for an answer to it, and for nothing of its own device.
  if (opened.depth == 0) simt::carry_out(stream);
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int from, ncclComm_t group,
                      cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const auto has_come = [=] {
    const Mailbox& mail = group->shared->mail[from][group->rank];
    return mail.sent > mail.received;
  };
  const auto receive = [=] {
    wait_until(has_come);
    Mailbox& mail = group->shared->mail[from][group->rank];
    const auto at = static_cast<std::size_t>(mail.received % Mailbox::kLetters);
    if (mail.bytes[at] != static_cast<std::int64_t>(bytes)) {
      simt::die("a recv of another size than the send's");
    }
    std::memcpy(out, group->shared->letters[from][group->rank] + at * kLetter, bytes);
    ++mail.received;
  };
  submit(stream, receive, has_come);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++opened.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--opened.depth > 0) return ncclSuccess;
  Opened group = std::move(opened);
  opened = {};
  if (group.stream == nullptr) return ncclSuccess;
  simt::enqueue_exchange(group.stream,
                         [sends = std::move(group.sends), others = std::move(group.others)] {
                           for (const auto& send : sends) send();
                           for (const auto& other : others) other();
                         },
                         {});
  return ncclSuccess;
}
