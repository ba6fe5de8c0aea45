// Groups of GPUs by NCCL. A communicator has a stream of its own, beside that of launches, which
// the two join by events: nothing here waits on the host but to begin and to end.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/library_group.hpp"
#include "kernels/cuda/nccl_api.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(DeviceGroupId));

const NcclApi& api() {
  const LoadedNccl& loaded = load_nccl();
  require<DeviceError>(loaded.problem.empty(), "{}", loaded.problem);
  return loaded.api;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::u32:
      return ncclUint32;
    case DType::u8:
      return ncclUint8;
    case DType::u16:
      break;
  }
  fail("NCCL has no type for {}", to_string(dtype));
}

ncclRedOp_t operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::sum:
      break;
  }
  return ncclSum;
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "to make an event"); }
  /// What waits for it keeps what it needs of it.
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const {
    check(cudaEventRecord(event_, stream), "to record an event");
  }
  void hold(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_), "to wait for an event");
  }
  bool is_over() const { return cudaEventQuery(event_) == cudaSuccess; }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclCall final : public DeviceCall {
 public:
  NcclCall(int device, cudaStream_t launches, cudaStream_t stream)
      : device_(device), launches_(launches) {
    done_.record(stream);
  }
  void join() override {
    check(cudaSetDevice(device_), "to choose the device");
    done_.hold(launches_);
  }
  bool is_done() const override { return done_.is_over(); }

 private:
  int device_;
  cudaStream_t launches_;
  Event done_;
};

/// Parts one behind the other, in bytes.
class Parts {
 public:
  Parts(const void* all, DeviceGroup::Counts counts, DType dtype)
      : at_(static_cast<const std::byte*>(all)), counts_(counts), element_(size_of(dtype)) {}
  /// Calls f(member, address, count) for those that are not empty.
  template <class F>
  void for_each(const F& f) const {
    const std::byte* at = at_;
    for (std::size_t m = 0; m < counts_.size(); ++m) {
      const auto count = static_cast<std::size_t>(counts_[m]);
      if (count > 0) f(static_cast<int>(m), const_cast<std::byte*>(at), count);
      at += count * element_;
    }
  }

 private:
  const std::byte* at_;
  DeviceGroup::Counts counts_;
  std::size_t element_;
};

bool are_equal(DeviceGroup::Counts counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

class NcclGroup final : public DeviceGroup {
 public:
  explicit NcclGroup(const LibraryGroupPlace& place)
      : device_(place.device), launches_(place.launches), rank_(place.rank) {
    choose_device();
    ncclUniqueId id;
    std::memcpy(&id, place.id.data(), sizeof(id));
    api_->check(api_->init_rank(&group_, place.size, id, place.rank), "to connect the GPUs");
    if (const auto status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        status != cudaSuccess) {
      api_->destroy(group_);
      cuda::check(status, "to make a stream");
    }
  }
  ~NcclGroup() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    api_->destroy(group_);
    cudaStreamDestroy(stream_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Queued all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op) override {
    return queue([&] {
      api_->check(api_->all_reduce(data, data, static_cast<std::size_t>(count), type_of(dtype),
                                   operation_of(op), group_, stream_),
                  "an all_reduce");
    });
  }

  Queued all_gather(const void* in, void* out, Counts counts, DType dtype) override {
    const ncclDataType_t type = type_of(dtype);
    return queue([&] {
      if (are_equal(counts)) {
        api_->check(
            api_->all_gather(in, out, static_cast<std::size_t>(counts[0]), type, group_, stream_),
            "an all_gather");
        return;
      }
      together([&] {
        Parts(out, counts, dtype).for_each([&](int m, void* part, std::size_t count) {
          api_->check(
              api_->broadcast(m == rank_ ? in : part, part, count, type, m, group_, stream_),
              "an all_gather");
        });
      });
    });
  }

  Queued reduce_scatter(const void* in, void* out, Counts counts, DType dtype) override {
    const ncclDataType_t type = type_of(dtype);
    return queue([&] {
      if (are_equal(counts)) {
        api_->check(api_->reduce_scatter(in, out, static_cast<std::size_t>(counts[0]), type,
                                         ncclSum, group_, stream_),
                    "a reduce_scatter");
        return;
      }
      together([&] {
        Parts(in, counts, dtype).for_each([&](int m, void* part, std::size_t count) {
          api_->check(
              api_->reduce(part, m == rank_ ? out : part, count, type, ncclSum, m, group_, stream_),
              "a reduce_scatter");
        });
      });
    });
  }

  Queued all_to_all(const void* in, Counts in_counts, void* out, Counts out_counts,
                    DType dtype) override {
    const ncclDataType_t type = type_of(dtype);
    return queue([&] {
      together([&] {
        Parts(in, in_counts, dtype).for_each([&](int m, void* part, std::size_t count) {
          api_->check(api_->send(part, count, type, m, group_, stream_), "an all_to_all");
        });
        Parts(out, out_counts, dtype).for_each([&](int m, void* part, std::size_t count) {
          api_->check(api_->recv(part, count, type, m, group_, stream_), "an all_to_all");
        });
      });
    });
  }

  Queued broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    return queue([&] {
      api_->check(api_->broadcast(data, data, static_cast<std::size_t>(count), type_of(dtype), root,
                                  group_, stream_),
                  "a broadcast");
    });
  }

  Queued send(const void* data, std::int64_t count, DType dtype, int to) override {
    return queue([&] {
      api_->check(
          api_->send(data, static_cast<std::size_t>(count), type_of(dtype), to, group_, stream_),
          "a send");
    });
  }

  Queued recv(void* data, std::int64_t count, DType dtype, int from) override {
    return queue([&] {
      api_->check(
          api_->recv(data, static_cast<std::size_t>(count), type_of(dtype), from, group_, stream_),
          "a recv");
    });
  }

  void check() override {
    ncclResult_t result = ncclSuccess;
    api_->check(api_->async_error(group_, &result), "to ask for errors");
    if (result != ncclInProgress) api_->check(result, "a call");
  }

 private:
  void choose_device() const { cuda::check(cudaSetDevice(device_), "to choose the device"); }

  template <class Body>
  Queued queue(const Body& body) {
    choose_device();
    const Event launched;
    launched.record(launches_);
    launched.hold(stream_);
    body();
    return std::make_shared<NcclCall>(device_, launches_, stream_);
  }

  /// As one call: sends and receives of which each may wait for another.
  template <class Body>
  void together(const Body& body) const {
    api_->check(api_->group_start(), "to begin a group of calls");
    try {
      body();
    } catch (...) {
      api_->group_end();
      throw;
    }
    api_->check(api_->group_end(), "a group of calls");
  }

  const NcclApi* api_ = &api();
  int device_;
  cudaStream_t launches_, stream_ = nullptr;
  int rank_;
  ncclComm_t group_ = nullptr;
};

}  // namespace

LibraryVersion group_library_version() {
  const LoadedNccl& loaded = load_nccl();
  return {.version = loaded.version, .problem = loaded.problem};
}

DeviceGroupId new_library_group_id() {
  ncclUniqueId id;
  api().check(api().unique_id(&id), "to make an id");
  DeviceGroupId bytes;
  std::memcpy(bytes.data(), &id, sizeof(id));
  return bytes;
}

std::unique_ptr<DeviceGroup> join_library_group(const LibraryGroupPlace& place) {
  return std::make_unique<NcclGroup>(place);
}

}  // namespace llmtrain::kernels::cuda
