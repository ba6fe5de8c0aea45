#include "kernels/cuda/nccl_api.hpp"

#include <cstdlib>
#include <dlfcn.h>

#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// "libnccl.so.2", but for tests.
constexpr const char* kLibrary = LLMTRAIN_NCCL_LIBRARY;
/// The first with ncclGetLastError.
constexpr int kOldest = 21300;

/// Major, minor and patch as decimal digits: 22809 is 2.28.9.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, NcclApi& api) {
  return find(library, "ncclGetVersion", api.version) &&
         find(library, "ncclGetErrorString", api.error_string) &&
         find(library, "ncclGetLastError", api.last_error) &&
         find(library, "ncclGetUniqueId", api.unique_id) &&
         find(library, "ncclCommInitRank", api.init_rank) &&
         find(library, "ncclCommDestroy", api.destroy) &&
         find(library, "ncclCommGetAsyncError", api.async_error) &&
         find(library, "ncclAllReduce", api.all_reduce) &&
         find(library, "ncclAllGather", api.all_gather) &&
         find(library, "ncclReduceScatter", api.reduce_scatter) &&
         find(library, "ncclReduce", api.reduce) && find(library, "ncclBroadcast", api.broadcast) &&
         find(library, "ncclSend", api.send) && find(library, "ncclRecv", api.recv) &&
         find(library, "ncclGroupStart", api.group_start) &&
         find(library, "ncclGroupEnd", api.group_end);
}

LoadedNccl load() {
  LoadedNccl result;
  const char* const named = std::getenv("LLMTRAIN_NCCL");
  const char* const file = named != nullptr && *named != '\0' ? named : kLibrary;
  // Never closed: it has threads of its own.
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    result.problem = fmt::format("{} is not there ({})", file, reason != nullptr ? reason : "?");
    return result;
  }
  if (!find_all(library, result.api)) {
    result.problem = fmt::format("{} lacks functions of NCCL 2.13", file);
    return result;
  }
  int version = 0;
  result.api.version(&version);
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
