#include "kernels/cuda/cudnn_api.hpp"

#include <cstdlib>
#include <dlfcn.h>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

namespace {

/// "libcudnn.so.9", but for tests.
constexpr const char* kLibrary = LLMTRAIN_CUDNN_LIBRARY;
/// Before it, backward passes over lengths that are no multiple of 128 need a padding mask, and
/// some versions have known errors (the support checks of NVIDIA/cudnn-frontend list them).
constexpr std::size_t kOldest = 91800;

/// Major, minor and patch as decimal digits: 91900 is 9.19.0.
std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, CudnnApi& api) {
  return find(library, "cudnnGetVersion", api.version) &&
         find(library, "cudnnGetErrorString", api.error_string) &&
         find(library, "cudnnGetLastErrorString", api.last_error_string) &&
         find(library, "cudnnCreate", api.create) && find(library, "cudnnDestroy", api.destroy) &&
         find(library, "cudnnSetStream", api.set_stream) &&
         find(library, "cudnnBackendCreateDescriptor", api.create_descriptor) &&
         find(library, "cudnnBackendDestroyDescriptor", api.destroy_descriptor) &&
         find(library, "cudnnBackendSetAttribute", api.set_attribute) &&
         find(library, "cudnnBackendGetAttribute", api.get_attribute) &&
         find(library, "cudnnBackendFinalize", api.finalize) &&
         find(library, "cudnnBackendExecute", api.execute);
}

LoadedCudnn load() {
  LoadedCudnn result;
  const char* const named = std::getenv("LLMTRAIN_CUDNN");
  const char* const file = named != nullptr && *named != '\0' ? named : kLibrary;
  // Never closed: it may have threads and handlers of its own.
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    result.problem = fmt::format("{} is not there ({})", file, reason != nullptr ? reason : "?");
    return result;
  }
  if (!find_all(library, result.api)) {
    result.problem = fmt::format("{} lacks functions of cuDNN 9", file);
    return result;
  }
  const std::size_t version = result.api.version();
  result.version = version_text(version);
  if (version < kOldest || version >= 100000) {
    result.problem = fmt::format("cuDNN {} is used from {} on, and below 10", result.version,
                                 version_text(kOldest));
  }
  return result;
}

}  // namespace

std::string CudnnApi::explain(cudnnStatus_t status) const {
  std::string text(1024, '\0');
  last_error_string(text.data(), text.size());
  text.resize(text.find('\0'));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? error_string(status) : fmt::format("{}: {}", error_string(status), text);
}

const LoadedCudnn& load_cudnn() {
  static const LoadedCudnn loaded = load();
  return loaded;
}

}  // namespace llmtrain::kernels::cuda
