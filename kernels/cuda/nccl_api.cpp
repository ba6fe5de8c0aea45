#include "kernels/cuda/nccl_api.hpp"

#include <cstdlib>

#include "kernels/cuda/optional_library.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// "libnccl.so.2", but for tests.
constexpr const char* kLibrary = LLMTRAIN_NCCL_LIBRARY;
/// The first with ncclGetLastError.
constexpr std::size_t kOldest = 21300;

bool find_all(const OptionalLibrary& library, NcclApi& api) {
  return library.find("ncclGetVersion", api.version) &&
         library.find("ncclGetErrorString", api.error_string) &&
         library.find("ncclGetLastError", api.last_error) &&
         library.find("ncclGetUniqueId", api.unique_id) &&
         library.find("ncclCommInitRank", api.init_rank) &&
         library.find("ncclCommDestroy", api.destroy) &&
         library.find("ncclCommGetAsyncError", api.async_error) &&
         library.find("ncclAllReduce", api.all_reduce) &&
         library.find("ncclAllGather", api.all_gather) &&
         library.find("ncclReduceScatter", api.reduce_scatter) &&
         library.find("ncclReduce", api.reduce) && library.find("ncclBroadcast", api.broadcast) &&
         library.find("ncclSend", api.send) && library.find("ncclRecv", api.recv) &&
         library.find("ncclGroupStart", api.group_start) &&
         library.find("ncclGroupEnd", api.group_end);
}

LoadedNccl load() {
  // Kernels of several groups, each of which waits for other GPUs, begin on a GPU in the order of
  // our calls: with some other order on another GPU both could wait for ever. From NCCL 2.26 on.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  LoadedNccl result;
  const OptionalLibrary library("LLMTRAIN_NCCL", kLibrary);
  if (!library.problem().empty()) {
    result.problem = library.problem();
    return result;
  }
  if (!find_all(library, result.api)) {
    result.problem = fmt::format("{} lacks functions of NCCL 2.13", library.file());
    return result;
  }
  int number = 0;
  result.api.version(&number);
  const auto version = static_cast<std::size_t>(number);
  result.version = version_text(version);
  if (version < kOldest) {
    result.problem =
        fmt::format("NCCL {} is used from {} on", result.version, version_text(kOldest));
  }
  return result;
}

}  // namespace

void NcclApi::check(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return;
  const char* const more = last_error(nullptr);
  fail<DeviceError>("NCCL: {} failed: {}{}{}", what, error_string(result),
                    more != nullptr && *more != '\0' ? ": " : "", more != nullptr ? more : "");
}

const LoadedNccl& load_nccl() {
  static const LoadedNccl loaded = load();
  return loaded;
}

}  // namespace llmtrain::kernels::cuda
